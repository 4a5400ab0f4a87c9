/* Poller: reads many connections in one call. Whose bytes are whole plain frames gets them as commands; all else,
   a frame's part, a large or an unusual one, an end, an error, is given to Python as it came. */

#include "remoting.h"

#ifdef __linux__
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { EVENTS_MAX = 1024, CHUNK_BYTES = 1 << 18, DESCRIPTORS_MAX = 1 << 20, PARTS_MAX = 64 };

/* One descriptor. `turn` tells apart those that had the same number one after the other. */
typedef struct {
    PyObject *connection;
    uint32_t turn;
    bool is_partial, is_watched;
} Place;

typedef struct {
    PyObject_HEAD
    int epoll_fd, events_max;
    PyObject *reader;
    Place *places;
    int place_count;
    uint32_t turns;
    uint8_t *chunk;
} Poller;

static int grow(Poller *self, int fd) {
    if (fd < 0 || fd >= DESCRIPTORS_MAX) {
        PyErr_Format(PyExc_ValueError, "%d is no descriptor to be watched", fd);
        return -1;
    }
    if (fd < self->place_count) return 0;
    int count = Py_MAX(fd + 1, self->place_count * 2);
    Place *places = PyMem_Realloc(self->places, (size_t)count * sizeof *places);
    if (places == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memset(places + self->place_count, 0, (size_t)(count - self->place_count) * sizeof *places);
    self->places = places;
    self->place_count = count;
    return 0;
}

static int watch(Poller *self, int fd, Place *place) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)place->turn << 32 | (uint32_t)fd};
    if (epoll_ctl(self->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0) return -1;
    place->is_watched = true;
    return 0;
}

static void unwatch(Poller *self, int fd, Place *place) {
    /* Fails where the descriptor was closed: it is not watched any more then. */
    if (place->is_watched) epoll_ctl(self->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    place->is_watched = false;
}

/* The place of (descriptor, connection, ...), NULL with an exception if the arguments are wrong, or without one
   if the connection does not have it. */
static Place *place_of(Poller *self, PyObject *const *args, Py_ssize_t count, Py_ssize_t expected, int *fd) {
    if (count != expected) {
        PyErr_SetString(PyExc_TypeError, "a descriptor, its connection, and what belongs to it");
        return NULL;
    }
    long number = PyLong_AsLong(args[0]);
    if (number == -1 && PyErr_Occurred()) return NULL;
    if (self->epoll_fd < 0 || number < 0 || number >= self->place_count) return NULL;
    *fd = (int)number;
    Place *place = &self->places[number];
    return place->connection == args[1] ? place : NULL;
}

#define NOTHING_OR_ERROR() \
    if (PyErr_Occurred()) return NULL; \
    Py_RETURN_NONE

/* add(descriptor, connection, is partial): whoever had the descriptor before has closed it. */
static PyObject *poller_add(Poller *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 3) return PyErr_Format(PyExc_TypeError, "add takes a descriptor, a connection and a flag");
    long fd = PyLong_AsLong(args[0]);
    int is_partial = PyObject_IsTrue(args[2]);
    if (PyErr_Occurred()) return NULL;
    if (self->epoll_fd < 0) return PyErr_Format(PyExc_RuntimeError, "closed");
    if (grow(self, fd > DESCRIPTORS_MAX ? DESCRIPTORS_MAX : (int)fd) < 0) return NULL;
    Place *place = &self->places[fd];
    unwatch(self, (int)fd, place);
    PyObject *before = place->connection;
    place->connection = Py_NewRef(args[1]);
    place->turn = ++self->turns;
    place->is_partial = is_partial;
    int error = watch(self, (int)fd, place);
    if (error < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        place->connection = NULL;
        Py_DECREF(args[1]);
    }
    Py_XDECREF(before);
    if (error < 0) return NULL;
    Py_RETURN_NONE;
}

/* remove(descriptor, connection) */
static PyObject *poller_remove(Poller *self, PyObject *const *args, Py_ssize_t count) {
    int fd;
    Place *place = place_of(self, args, count, 2, &fd);
    if (place == NULL) { NOTHING_OR_ERROR(); }
    unwatch(self, fd, place);
    Py_CLEAR(place->connection);
    Py_RETURN_NONE;
}

/* pause(descriptor, connection, is paused) */
static PyObject *poller_pause(Poller *self, PyObject *const *args, Py_ssize_t count) {
    int fd;
    Place *place = place_of(self, args, count, 3, &fd);
    if (place == NULL) { NOTHING_OR_ERROR(); }
    if (args[2] == Py_True) unwatch(self, fd, place);
    else if (!place->is_watched && watch(self, fd, place) < 0) return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

/* expect(descriptor, connection, is partial): whether the next bytes go on with a frame that Python has begun. */
static PyObject *poller_expect(Poller *self, PyObject *const *args, Py_ssize_t count) {
    int fd;
    Place *place = place_of(self, args, count, 3, &fd);
    if (place == NULL) { NOTHING_OR_ERROR(); }
    place->is_partial = args[2] == Py_True;
    Py_RETURN_NONE;
}

/* Reads one connection. A new tuple (connection, commands or bytes or None, open requests, code); or NULL, with an
   exception or without one when there was nothing to read. */
static PyObject *read_one(Poller *self, int fd, Place *place) {
    ssize_t size;
    do size = recv(fd, self->chunk, CHUNK_BYTES, MSG_DONTWAIT);
    while (size < 0 && errno == EINTR);
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return NULL;
    PyObject *found = NULL, *connection = Py_NewRef(place->connection), *one = NULL;
    long open_count = 0, code = -1;
    int error = 0;
    if (size <= 0) {
        unwatch(self, fd, place);
        found = Py_NewRef(Py_None);
    } else if (!place->is_partial) {
        /* Making objects may collect garbage, and that call anything: `place` does not hold behind it. */
        error = frames_read_plain(self->reader, self->chunk, size, &found, &open_count, &code);
        place = &self->places[fd];
    }
    if (found == NULL && error >= 0) {
        /* What Python makes of these is not known before it says so. */
        place->is_partial = true;
        found = PyBytes_FromStringAndSize((const char *)self->chunk, size);
    }
    if (found != NULL) one = Py_BuildValue("ONll", connection, found, open_count, code);
    Py_DECREF(connection);
    return one;
}

/* collect() -> list of such tuples, of the connections that are readable now. Not all, if they are many: the
   others stay readable. */
static PyObject *poller_collect(Poller *self, PyObject *nothing) {
    struct epoll_event events[EVENTS_MAX];
    if (self->epoll_fd < 0) return PyErr_Format(PyExc_RuntimeError, "closed");
    int count = epoll_wait(self->epoll_fd, events, self->events_max, 0);
    if (count < 0 && errno != EINTR) return PyErr_SetFromErrno(PyExc_OSError);
    PyObject *all = PyList_New(0);
    for (int at = 0; all != NULL && at < count; at++) {
        uint32_t fd = (uint32_t)events[at].data.u64, turn = (uint32_t)(events[at].data.u64 >> 32);
        if (fd >= (uint32_t)self->place_count) continue;
        Place *place = &self->places[fd];
        if (place->connection == NULL || !place->is_watched || place->turn != turn) continue;
        PyObject *one = read_one(self, (int)fd, place);
        if (one == NULL && !PyErr_Occurred()) continue;
        if (one == NULL || PyList_Append(all, one) < 0) Py_CLEAR(all);
        Py_XDECREF(one);
    }
    return all;
}

/* send(descriptor, connection, list of bytes) -> how many of them all the kernel took; 0 as well when there is an
   error, which whoever writes the rest will find. Of a long list only the first parts are given to it. */
static PyObject *poller_send(Poller *self, PyObject *const *args, Py_ssize_t count) {
    int fd;
    Place *place = place_of(self, args, count, 3, &fd);
    if (place == NULL) {
        if (PyErr_Occurred()) return NULL;
        return PyLong_FromLong(0);
    }
    if (!PyList_Check(args[2])) return PyErr_Format(PyExc_TypeError, "send takes a list of bytes");
    struct iovec parts[PARTS_MAX];
    struct msghdr message = {.msg_iov = parts};
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(args[2]) && at < PARTS_MAX; at++) {
        PyObject *part = PyList_GET_ITEM(args[2], at);
        if (!PyBytes_Check(part)) return PyErr_Format(PyExc_TypeError, "send takes a list of bytes");
        parts[at] = (struct iovec){PyBytes_AS_STRING(part), (size_t)PyBytes_GET_SIZE(part)};
        message.msg_iovlen++;
    }
    ssize_t sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    return PyLong_FromSsize_t(sent < 0 ? 0 : sent);
}

static PyObject *poller_fileno(Poller *self, PyObject *nothing) { return PyLong_FromLong(self->epoll_fd); }

static int poller_visit(Poller *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->reader);
    for (int fd = 0; fd < self->place_count; fd++) Py_VISIT(self->places[fd].connection);
    return 0;
}

static int poller_clear(Poller *self) {
    for (int fd = 0; fd < self->place_count; fd++) Py_CLEAR(self->places[fd].connection);
    return 0;
}

static PyObject *poller_close(Poller *self, PyObject *nothing) {
    if (self->epoll_fd >= 0) close(self->epoll_fd);
    self->epoll_fd = -1;
    poller_clear(self);
    Py_RETURN_NONE;
}

static void poller_free(Poller *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->epoll_fd >= 0) close(self->epoll_fd);
    poller_clear(self);
    Py_XDECREF(self->reader);
    PyMem_Free(self->places);
    PyMem_Free(self->chunk);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *poller_make(PyTypeObject *type, PyObject *args, PyObject *named) {
    PyObject *reader;
    int events_max;
    if (named != NULL && PyDict_GET_SIZE(named) > 0)
        return PyErr_Format(PyExc_TypeError, "Poller takes no named arguments");
    if (!PyArg_ParseTuple(args, "Oi", &reader, &events_max)) return NULL;
    if (!is_frame_reader(reader)) return PyErr_Format(PyExc_TypeError, "no FrameReader");
    if (events_max < 1 || events_max > EVENTS_MAX)
        return PyErr_Format(PyExc_ValueError, "1 to %d connections in one call", EVENTS_MAX);
    Poller *made = (Poller *)type->tp_alloc(type, 0);
    if (made == NULL) return NULL;
    made->events_max = events_max;
    made->reader = Py_NewRef(reader);
    made->chunk = PyMem_Malloc(CHUNK_BYTES);
    made->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (made->chunk == NULL) PyErr_NoMemory();
    else if (made->epoll_fd < 0) PyErr_SetFromErrno(PyExc_OSError);
    if (!PyErr_Occurred()) return (PyObject *)made;
    Py_DECREF(made);
    return NULL;
}

static PyMethodDef methods[] = {
    {"add", (PyCFunction)(void (*)(void))poller_add, METH_FASTCALL, NULL},
    {"remove", (PyCFunction)(void (*)(void))poller_remove, METH_FASTCALL, NULL},
    {"pause", (PyCFunction)(void (*)(void))poller_pause, METH_FASTCALL, NULL},
    {"expect", (PyCFunction)(void (*)(void))poller_expect, METH_FASTCALL, NULL},
    {"send", (PyCFunction)(void (*)(void))poller_send, METH_FASTCALL, NULL},
    {"collect", (PyCFunction)poller_collect, METH_NOARGS, NULL},
    {"fileno", (PyCFunction)poller_fileno, METH_NOARGS, NULL},
    {"close", (PyCFunction)poller_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_new, poller_make},
    {Py_tp_dealloc, poller_free},
    {Py_tp_traverse, poller_visit},
    {Py_tp_clear, poller_clear},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {"native._remoting.Poller", sizeof(Poller), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                           type_slots};

int add_poller(PyObject *module) {
    PyObject *type = PyType_FromSpec(&spec);
    if (type == NULL) return -1;
    int error = PyModule_AddObjectRef(module, "Poller", type);
    Py_DECREF(type);
    return error;
}
#else
int add_poller(PyObject *module) { return PyModule_AddObjectRef(module, "Poller", Py_None); }
#endif
