/* Writing large pieces past the page cache. What the page cache would do for them costs more than the disk does:
   each page is taken, copied to, found dirty and written. The bytes go through one small buffer that stays warm. */

#include "writer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK_BYTES = 4096, BUFFER_BYTES = 4 << 20 };

/* Moves `size` bytes from the front of the parts to `to`. */
static void take(struct iovec **parts, char *to, size_t size) {
    while (size > 0) {
        struct iovec *part = *parts;
        size_t own = part->iov_len < size ? part->iov_len : size;
        memcpy(to, part->iov_base, own);
        part->iov_base = (char *)part->iov_base + own;
        part->iov_len -= own;
        to += own;
        size -= own;
        if (part->iov_len == 0) ++*parts;
    }
}

/* Whole blocks, by `direct_fd` where it takes them; the kernel may take fewer, or refuse a block of this size. */
static int write_blocks(int direct_fd, int fd, const char *data, size_t size, off_t position) {
    ssize_t written;
    do written = pwrite(direct_fd, data, size, position);
    while (written < 0 && errno == EINTR);
    if (written < 0 && errno != EINVAL && errno != EOPNOTSUPP) return errno;
    if (written < 0) written = 0;
    struct iovec rest = {(char *)data + written, size - (size_t)written};
    return rest.iov_len == 0 ? 0 : write_parts(fd, &rest, 1, position + written);
}

int write_direct(int direct_fd, int fd, struct iovec *parts, Py_ssize_t count, off_t position, char **buffer) {
    if (*buffer == NULL && posix_memalign((void **)buffer, BLOCK_BYTES, BUFFER_BYTES) != 0) {
        *buffer = NULL;
        return write_parts(fd, parts, count, position);
    }
    size_t left = 0;
    for (Py_ssize_t number = 0; number < count; number++) left += parts[number].iov_len;
    while (left > 0) {
        size_t into_block = (size_t)(position % BLOCK_BYTES), size = left < BUFFER_BYTES ? left : BUFFER_BYTES;
        if (into_block > 0) size = left < BLOCK_BYTES - into_block ? left : BLOCK_BYTES - into_block;
        else if (size >= BLOCK_BYTES) size -= size % BLOCK_BYTES;
        take(&parts, *buffer, size);
        struct iovec part = {*buffer, size};
        bool is_whole = into_block == 0 && size >= BLOCK_BYTES;
        int error = is_whole ? write_blocks(direct_fd, fd, *buffer, size, position) : write_parts(fd, &part, 1, position);
        if (error != 0) return error;
        position += (off_t)size;
        left -= size;
    }
    return 0;
}
