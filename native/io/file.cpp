#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace freetoken {
namespace {

// Waiting for a pipe's other end, or becoming a terminal's owner, is never wanted of a file of weights.
constexpr int kOpenFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

#ifdef O_DIRECT
constexpr int kDirectFlag = O_DIRECT;
#else
constexpr int kDirectFlag = 0;
#endif

// What file systems that know no direct reads answer: tmpfs and overlays EINVAL, some network file systems the other.
bool refuses_direct(int code) {
    return code == EINVAL || code == EOPNOTSUPP;
}

}  // namespace

int FileSystem::open(const char* path, int flags) {
    return ::open(path, flags);
}

bool FileSystem::regular(int descriptor) {
    struct stat status;
    return ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
}

ssize_t FileSystem::read(int descriptor, void* target, size_t size, off_t offset) {
    return ::pread(descriptor, target, size, offset);
}

void FileSystem::read_ahead(int descriptor) {
#ifdef POSIX_FADV_SEQUENTIAL
    ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_SEQUENTIAL);
#else
    (void)descriptor;
#endif
}

void FileSystem::drop(int descriptor, off_t offset, off_t size) {
#ifdef POSIX_FADV_DONTNEED
    ::posix_fadvise(descriptor, offset, size, POSIX_FADV_DONTNEED);
#else
    (void)descriptor, (void)offset, (void)size;
#endif
}

void FileSystem::close(int descriptor) {
    ::close(descriptor);
}

SourceFile::SourceFile(FileSystem& system, std::string path, bool direct) : system_(system), path_(std::move(path)) {
    buffered_ = system_.open(path_.c_str(), kOpenFlags);
    if (buffered_ < 0) throw ReadError(errno, std::strerror(errno), path_);
    if (!system_.regular(buffered_)) {
        system_.close(buffered_);
        throw ReadError(EINVAL, "not a regular file", path_);
    }
    if (direct && kDirectFlag != 0) direct_ = system_.open(path_.c_str(), kOpenFlags | kDirectFlag);
    direct_works_ = direct_ >= 0;
    if (!direct_works_) system_.read_ahead(buffered_);
}

SourceFile::~SourceFile() {
    system_.close(buffered_);
    if (direct_ >= 0) system_.close(direct_);
}

size_t SourceFile::read(uint8_t* target, uint64_t offset, size_t size) {
    const bool aligned = offset % kDirectAlignment == 0 && reinterpret_cast<uintptr_t>(target) % kDirectAlignment == 0;
    size_t direct = 0;
    if (aligned && direct_works_) direct = read_direct(target, offset, size / kDirectAlignment * kDirectAlignment);
    if (direct < size) read_buffered(target + direct, offset + direct, size - direct);
    return direct;
}

// As much as comes past the page cache; what a short answer leaves over, the buffered read has to explain.
size_t SourceFile::read_direct(uint8_t* target, uint64_t offset, size_t size) {
    size_t done = 0;
    while (done < size) {
        const ssize_t got = read_once(direct_, target + done, offset + done, size - done);
        if (got < 0) {
            if (!refuses_direct(errno)) fail(errno, offset + done, size - done);
            direct_works_ = false;
            break;
        }
        done += static_cast<size_t>(got);
        if (got == 0 || done % kDirectAlignment != 0) break;
    }
    return done;
}

void SourceFile::read_buffered(uint8_t* target, uint64_t offset, size_t size) {
    for (size_t done = 0; done < size;) {
        const ssize_t got = read_once(buffered_, target + done, offset + done, size - done);
        if (got < 0) fail(errno, offset + done, size - done);
        if (got == 0) {
            throw ReadError(EIO,
                            "the file ends at byte " + std::to_string(offset + done) + ", and " +
                                std::to_string(size - done) + " bytes from there on are missing",
                            path_);
        }
        done += static_cast<size_t>(got);
    }
    // The bytes have found their place; a second copy in the page cache would push out what others need.
    system_.drop(buffered_, static_cast<off_t>(offset), static_cast<off_t>(size));
}

ssize_t SourceFile::read_once(int descriptor, uint8_t* target, uint64_t offset, size_t size) {
    ssize_t got;
    do {
        got = system_.read(descriptor, target, size, static_cast<off_t>(offset));
    } while (got < 0 && errno == EINTR);
    return got;
}

void SourceFile::fail(int code, uint64_t offset, size_t size) const {
    throw ReadError(code,
                    std::string(std::strerror(code)) + ", reading " + std::to_string(size) + " bytes from byte " +
                        std::to_string(offset),
                    path_);
}

}  // namespace freetoken
