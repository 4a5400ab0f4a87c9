/* Writing buffers to a file to their last byte, and bringing the file to the disk. */

#include "writer.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define BUFFERS_PER_CALL_MAX 1024 /* Linux's IOV_MAX */

int write_parts(int fd, struct iovec *parts, Py_ssize_t count, off_t position) {
    while (count > 0) {
        ssize_t written = pwritev(fd, parts, (int)(count < BUFFERS_PER_CALL_MAX ? count : BUFFERS_PER_CALL_MAX), position);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return errno;
        position += written;
        size_t left = (size_t)written;
        while (count > 0 && left >= parts->iov_len) {
            left -= parts->iov_len;
            parts++;
            count--;
        }
        if (count > 0) {
            if (written == 0) return EIO; /* no progress: this would never end */
            parts->iov_base = (char *)parts->iov_base + left;
            parts->iov_len -= left;
        }
    }
    return 0;
}

int sync_file(int fd) {
    for (;;) {
#ifdef __APPLE__
        int result = fcntl(fd, F_FULLFSYNC);
#else
        int result = fdatasync(fd);
#endif
        if (result >= 0) return 0;
        if (errno != EINTR) return errno;
    }
}
