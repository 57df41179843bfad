// Large reads: what arrives, what a failing disk does, and that nothing stays behind.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "exec/memory.h"
#include "io/numa.h"
#include "io/read.h"

using namespace freetoken;

namespace {

uint8_t byte_at(uint64_t i) {
    return static_cast<uint8_t>((i * 2654435761u) >> 13);
}

void ignore(uint64_t) {}

// Files that exist in numbers only: `sizes` says how long each is. Direct reads want alignment, as a disk's do.
class FakeDisk : public FileSystem {
public:
    std::map<std::string, uint64_t> sizes;
    int direct_open_error = 0;                    // errno of opening past the page cache
    std::atomic<int> direct_read_error{0};        // errno of the next direct read, once
    std::atomic<int> interruptions{0};            // reads that a signal cuts off
    std::atomic<uint64_t> broken_at{UINT64_MAX};  // no byte from here on can be read: EIO
    std::atomic<size_t> most{SIZE_MAX};           // a read gives no more than this
    std::atomic<int> delay_ms{0};
    std::atomic<int> opened{0}, closed{0}, direct_reads{0}, buffered_reads{0};
    std::atomic<uint64_t> dropped{0};

    int open(const char* path, int flags) override {
        const std::lock_guard lock(mutex_);
        const auto file = sizes.find(path);
        if (file == sizes.end()) return errno = ENOENT, -1;
        const bool direct = (flags & O_DIRECT) != 0;
        if (direct && direct_open_error != 0) return errno = direct_open_error, -1;
        ++opened;
        files_.push_back({file->second, direct});
        return static_cast<int>(files_.size() - 1);
    }
    bool regular(int) override { return true; }
    ssize_t read(int descriptor, void* target, size_t size, off_t offset) override {
        if (delay_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
        if (interruptions.fetch_sub(1) > 0) return errno = EINTR, -1;
        Open file;
        {
            const std::lock_guard lock(mutex_);
            file = files_[static_cast<size_t>(descriptor)];
        }
        ++(file.direct ? direct_reads : buffered_reads);
        const auto start = static_cast<uint64_t>(offset);
        if (file.direct) {
            if (const int code = direct_read_error.exchange(0)) return errno = code, -1;
            if ((start | size | reinterpret_cast<uintptr_t>(target)) % kDirectAlignment != 0) return errno = EINVAL, -1;
        }
        if (start + size > broken_at) return errno = EIO, -1;
        size = std::min({size, most.load(), static_cast<size_t>(file.size - std::min(file.size, start))});
        for (size_t i = 0; i < size; ++i) static_cast<uint8_t*>(target)[i] = byte_at(start + i);
        return static_cast<ssize_t>(size);
    }
    void read_ahead(int) override {}
    void drop(int, off_t, off_t size) override { dropped += static_cast<uint64_t>(size); }
    void close(int) override { ++closed; }

private:
    struct Open {
        uint64_t size;
        bool direct;
    };
    std::mutex mutex_;
    std::vector<Open> files_;
};

// Whether `size` bytes at `data` are those of a file from `offset` on.
bool right(const uint8_t* data, uint64_t offset, size_t size) {
    for (size_t i = 0; i < size; ++i)
        if (data[i] != byte_at(offset + i)) return false;
    return true;
}

constexpr size_t kChunk = 3 * kDirectAlignment;
const ReadOptions kOptions = {3, kChunk, true};

// The error that reading the whole of "file" as one of `size` bytes ends with; code 0: none, and all bytes are right.
ReadError failure(FakeDisk& disk, size_t size) {
    Mapping memory(size);
    const FilePart part = {"file", 0, size, memory.data()};
    try {
        read_files({&part, 1}, kOptions, ignore, disk);
    } catch (const ReadError& error) {
        CHECK(disk.opened == disk.closed, "%d opened, %d closed", disk.opened.load(), disk.closed.load());
        return error;
    }
    CHECK(right(memory.data(), 0, size), "other bytes");
    return {0, "", ""};
}

}  // namespace

FREETOKEN_TEST(parts_of_every_size_and_place_arrive) {
    for (const size_t size :
         {size_t{1}, kDirectAlignment - 1, kDirectAlignment, kChunk, kChunk + 1, 10 * kChunk + 77}) {
        for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, uint64_t{kDirectAlignment}}) {
            for (const size_t shift : {size_t{0}, size_t{8}}) {
                FakeDisk disk;
                disk.sizes = {{"file", offset + size}};
                Mapping memory(size + shift);
                const FilePart part = {"file", offset, size, memory.data() + shift};
                const ReadReport report = read_files({&part, 1}, kOptions, ignore, disk);
                CHECK(right(part.target, offset, size), "%zu bytes from %lu on", size,
                      static_cast<unsigned long>(offset));
                CHECK(report.bytes == size, "%lu", static_cast<unsigned long>(report.bytes));
                const bool aligned = offset % kDirectAlignment == 0 && shift == 0;
                const size_t direct = aligned ? size / kDirectAlignment * kDirectAlignment : 0;
                CHECK(report.direct_bytes == direct, "%lu instead of %zu",
                      static_cast<unsigned long>(report.direct_bytes), direct);
                CHECK(disk.dropped == size - direct, "%lu stay in no cache",
                      static_cast<unsigned long>(disk.dropped.load()));
            }
        }
    }
}

FREETOKEN_TEST(parts_of_one_file_share_its_descriptors) {
    FakeDisk disk;
    disk.sizes = {{"one", 9 * kChunk}, {"two", kChunk}};
    Mapping memory(5 * kChunk);
    const FilePart parts[] = {{"one", 8 * kChunk, kChunk, memory.data()},
                              {"two", 0, kChunk, memory.data() + kChunk},
                              {"one", 0, 3 * kChunk, memory.data() + 2 * kChunk}};
    read_files(parts, kOptions, ignore, disk);
    CHECK(right(memory.data(), 8 * kChunk, kChunk) && right(memory.data() + kChunk, 0, kChunk) &&
              right(memory.data() + 2 * kChunk, 0, 3 * kChunk),
          "parts differ");
    CHECK(disk.opened == 4 && disk.closed == 4, "%d opened, %d closed", disk.opened.load(), disk.closed.load());
}

FREETOKEN_TEST(short_reads_and_signals_are_gone_on_from) {
    FakeDisk disk;
    disk.sizes = {{"file", 20 * kChunk + 5}};
    disk.interruptions = 7;
    for (const size_t most : {size_t{1000}, kDirectAlignment, 2 * kDirectAlignment}) {
        disk.most = most;
        const ReadError error = failure(disk, 20 * kChunk + 5);
        CHECK(error.code == 0, "%s", error.what());
    }
}

FREETOKEN_TEST(a_file_system_without_direct_reads_is_read_through_its_cache) {
    for (const int code : {EINVAL, EOPNOTSUPP}) {
        FakeDisk opening;
        opening.sizes = {{"file", 4 * kChunk}};
        opening.direct_open_error = code;
        CHECK(failure(opening, 4 * kChunk).code == 0, "errno %d", code);
        CHECK(opening.direct_reads == 0 && opening.buffered_reads > 0, "%d direct", opening.direct_reads.load());
        FakeDisk reading;  // some say so only when they are read
        reading.sizes = opening.sizes;
        reading.direct_read_error = code;
        CHECK(failure(reading, 4 * kChunk).code == 0, "errno %d", code);
        CHECK(reading.buffered_reads > 0 && reading.dropped > 0, "%d buffered", reading.buffered_reads.load());
    }
}

FREETOKEN_TEST(failures_say_what_is_missing_and_leave_nothing_open) {
    FakeDisk empty;
    CHECK(failure(empty, kChunk).code == ENOENT, "not absent");
    FakeDisk cut;
    cut.sizes = {{"file", 2 * kChunk + 100}};
    const ReadError short_file = failure(cut, 5 * kChunk);
    CHECK(short_file.code == EIO && short_file.path == "file", "%d %s", short_file.code, short_file.path.c_str());
    CHECK(std::string(short_file.what()).find("the file ends at byte") == 0, "%s", short_file.what());
    FakeDisk broken;
    broken.sizes = {{"file", 50 * kChunk}};
    broken.broken_at = 7 * kChunk;
    const ReadError bad_sector = failure(broken, 50 * kChunk);
    CHECK(bad_sector.code == EIO, "%d", bad_sector.code);
    CHECK(std::string(bad_sector.what()).find("bytes from byte") != std::string::npos, "%s", bad_sector.what());
    CHECK(broken.direct_reads < 20, "%d reads after the failure", broken.direct_reads.load());
}

FREETOKEN_TEST(one_absent_file_of_several_reads_nothing) {
    FakeDisk disk;
    disk.sizes = {{"there", kChunk}};
    Mapping memory(2 * kChunk);
    const FilePart parts[] = {{"there", 0, kChunk, memory.data()}, {"absent", 0, kChunk, memory.data() + kChunk}};
    std::string missing;
    try {
        read_files(parts, kOptions, ignore, disk);
    } catch (const ReadError& error) {
        missing = error.path;
    }
    CHECK(missing == "absent", "%s", missing.c_str());
    CHECK(disk.direct_reads == 0 && disk.opened == disk.closed, "%d reads", disk.direct_reads.load());
}

FREETOKEN_TEST(a_watcher_that_throws_stops_the_reading) {
    FakeDisk disk;
    disk.sizes = {{"file", 3000 * kChunk}};
    disk.delay_ms = 5;
    Mapping memory(3000 * kChunk);
    const FilePart part = {"file", 0, 3000 * kChunk, memory.data()};
    struct Enough {};
    bool stopped = false;
    uint64_t seen = 0;
    try {
        read_files({&part, 1}, kOptions, [&](uint64_t done) { seen = done, throw Enough(); }, disk);
    } catch (const Enough&) {
        stopped = true;
    }
    CHECK(stopped && seen > 0 && seen < part.size, "%lu", static_cast<unsigned long>(seen));
    CHECK(disk.opened == disk.closed, "files stay open");
    CHECK(disk.direct_reads < 1000, "%d", disk.direct_reads.load());
}

FREETOKEN_TEST(progress_rises_at_most_ten_times_a_second_and_ends_at_the_end) {
    FakeDisk disk;
    disk.sizes = {{"file", 180 * kChunk}};
    disk.delay_ms = 5;  // of three threads: 300 ms
    Mapping memory(180 * kChunk);
    const FilePart part = {"file", 0, 180 * kChunk, memory.data()};
    std::vector<uint64_t> seen;
    const ReadReport report = read_files({&part, 1}, kOptions, [&](uint64_t done) { seen.push_back(done); }, disk);
    CHECK(std::is_sorted(seen.begin(), seen.end()) && seen.back() == part.size, "%zu calls", seen.size());
    CHECK(seen.size() >= 2 && static_cast<double>(seen.size()) <= report.seconds * 10 + 2, "%zu calls in %f s",
          seen.size(), report.seconds);
}

FREETOKEN_TEST(a_real_file_arrives_twice_at_once) {
    char name[] = "/tmp/freetoken-io-XXXXXX";
    const int descriptor = mkstemp(name);
    std::vector<uint8_t> content((size_t{3} << 20) + 123);
    for (size_t i = 0; i < content.size(); ++i) content[i] = byte_at(i);
    CHECK(write(descriptor, content.data(), content.size()) == static_cast<ssize_t>(content.size()), "not written");
    close(descriptor);
    const auto load = [&](bool direct) {
        Mapping memory(content.size(), true);
        const FilePart part = {name, 0, content.size(), memory.data()};
        read_files({&part, 1}, {4, size_t{1} << 20, direct}, ignore);
        return std::memcmp(memory.data(), content.data(), content.size()) == 0;
    };
    bool other = false;
    std::thread thread([&] { other = load(true); });
    CHECK(load(true) && load(false), "bytes differ");
    thread.join();
    CHECK(other, "bytes of the other thread differ");
    unlink(name);
}

FREETOKEN_TEST(a_folder_is_no_file) {
    Mapping memory(kChunk);
    const FilePart part = {"/tmp", 0, kChunk, memory.data()};
    int code = 0;
    try {
        read_files({&part, 1}, kOptions, ignore);
    } catch (const ReadError& error) {
        code = error.code;
    }
    CHECK(code == EINVAL, "%d", code);
}

FREETOKEN_TEST(a_node_that_is_not_there_is_refused) {
    Mapping memory(kChunk);
    CHECK(!prefer_node(memory.data(), memory.bytes(), -1) && !prefer_node(memory.data(), memory.bytes(), 64), "bound");
}

int main(int argc, char** argv) {
    return test::run_tests(argc, argv);
}
