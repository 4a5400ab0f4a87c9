/* What the compiled writer thread's files share. Nothing here needs Python's lock. */
#ifndef LEDGERMQ_WRITER_H
#define LEDGERMQ_WRITER_H

#include "log.h"

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/uio.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* all signals are blocked in the thread */
#endif

/* Writes all of `parts`, which it uses up; 0 or an errno. */
int write_parts(int fd, struct iovec *parts, Py_ssize_t count, off_t position);

/* Brings the file's bytes to the disk (fdatasync); 0 or an errno. */
int sync_file(int fd);

/* As write_parts; but whole blocks go by `direct_fd`, which is the same file opened with O_DIRECT. `buffer` is made when
   it is NULL, and belongs to the caller, who frees it. */
int write_direct(int direct_fd, int fd, struct iovec *parts, Py_ssize_t count, off_t position, char **buffer);

#endif
