// Reading large files into memory with a few threads, so that the disk always has something to do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "io/file.h"

namespace freetoken {

// Bytes of a file, and where they go.
struct FilePart {
    std::string path;
    uint64_t offset = 0;
    size_t size = 0;
    uint8_t* target = nullptr;
};

struct ReadOptions {
    // Reads under way at once, and the size of each: the fewest and smallest that reach what the disk gives. A read of
    // 4 MiB is many requests to a disk, and faults two huge pages in, so that threads do not wait for each other there.
    int threads = 8;
    size_t chunk = size_t{4} << 20;
    bool direct = true;  // past the page cache where that can be done
};

struct ReadReport {
    uint64_t bytes = 0;
    uint64_t direct_bytes = 0;  // those that came past the page cache
    double seconds = 0;
};

// Called by the thread that called `read_files`, ten times a second and at the end, with the bytes that have been read.
// What it throws stops the reading within a chunk's time and comes out of `read_files`.
using ReadWatch = std::function<void(uint64_t)>;

// Fills every part's memory. Opens all files first, so that one that is absent is known at once. Throws ReadError
// (the first of any thread), std::system_error when no thread can be started; no thread and no file stays behind.
ReadReport read_files(std::span<const FilePart> parts, const ReadOptions& options, const ReadWatch& watch);
ReadReport read_files(std::span<const FilePart> parts, const ReadOptions& options, const ReadWatch& watch,
                      FileSystem& system);

}  // namespace freetoken
