// One file that is read in large pieces: past the page cache where the file system lets us, through it elsewhere.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace freetoken {

// What direct reads must be a multiple of, in the file and in memory; no disk in use asks for more.
inline constexpr size_t kDirectAlignment = 4096;

// A file that could not be read. `code` is an errno; the text says what is missing and does not name the file.
struct ReadError : std::runtime_error {
    ReadError(int code, const std::string& text, std::string path)
        : std::runtime_error(text), code(code), path(std::move(path)) {}

    int code;
    std::string path;
};

// The system calls that reading takes; tests put a disk that fails in their place. All as in POSIX.
class FileSystem {
public:
    virtual ~FileSystem() = default;
    virtual int open(const char* path, int flags);
    virtual bool regular(int descriptor);
    virtual ssize_t read(int descriptor, void* target, size_t size, off_t offset);
    virtual void read_ahead(int descriptor);                      // it is read from its beginning to its end
    virtual void drop(int descriptor, off_t offset, off_t size);  // these bytes need stay in no cache
    virtual void close(int descriptor);
};

// Open for reading by any number of threads.
class SourceFile {
public:
    // Throws ReadError for what is not there, is no regular file or cannot be opened.
    SourceFile(FileSystem& system, std::string path, bool direct);
    ~SourceFile();
    SourceFile(const SourceFile&) = delete;
    SourceFile& operator=(const SourceFile&) = delete;

    // Fills `size` bytes at `target` from `offset` on. Returns how many of them came past the page cache. Throws
    // ReadError for a file that ends before, or that the disk does not give.
    size_t read(uint8_t* target, uint64_t offset, size_t size);

private:
    size_t read_direct(uint8_t* target, uint64_t offset, size_t size);
    void read_buffered(uint8_t* target, uint64_t offset, size_t size);
    ssize_t read_once(int descriptor, uint8_t* target, uint64_t offset, size_t size);
    [[noreturn]] void fail(int code, uint64_t offset, size_t size) const;

    FileSystem& system_;
    const std::string path_;
    int buffered_ = -1;
    int direct_ = -1;
    std::atomic<bool> direct_works_{false};
};

}  // namespace freetoken
