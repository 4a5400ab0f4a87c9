/* A thread that writes and syncs files without ever needing Python's lock.

   One job at a time: `submit` hands it over, `finish` tells how it ended, and how many seconds it took. A job is a list of steps, carried out
   in order until one fails: (descriptor, position, buffers) writes the buffers back to back, and (descriptor,
   position, buffers, direct) writes their whole blocks past the page cache; a bare descriptor is synced (fdatasync).

   A job may be submitted quietly: then nothing wakes the loop at its end, unless it failed, `await_end` was called
   meanwhile, or its answer was not sent whole. Else the pipe becomes readable. A job may have an answer, one (socket,
   bytes) among its steps: it is sent there without waiting. Until then `take_back` can stop it; whoever else writes
   to that connection has to do that first. */

#include "writer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define STEPS_MAX 64

typedef struct {
    int fd, direct_fd; /* the latter -1: by the page cache */
    int64_t position;
    Py_ssize_t first, count; /* of the job's buffers; none: sync */
    int is_answer;
} step;

typedef struct {
    PyObject_HEAD
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int done_pipe[2];
    int is_running, is_ending, has_job, is_done, error;
    int is_awaited;      /* the pipe is to be written to at the end of the job */
    int is_emptied;      /* the pipe, since the job began */
    int has_waiter;      /* `finish` waits for the condition */
    int may_answer;      /* the job has an answer that nobody took back */
    Py_ssize_t answer_bytes, answered; /* its length, and how much of it was sent */
    double took_s;       /* the job, from its first step to its last */
    step steps[STEPS_MAX];
    Py_ssize_t step_count;
    Py_buffer *views;
    struct iovec *parts;
    Py_ssize_t part_count;
    char *direct_buffer; /* the thread's */
} writer;

/* What cannot be sent now is left to the loop. The lock is held: `take_back` comes before or after all of it. */
static void send_answer(writer *self, int fd, const struct iovec *part) {
    pthread_mutex_lock(&self->lock);
    if (self->may_answer) {
        ssize_t sent = send(fd, part->iov_base, part->iov_len, MSG_DONTWAIT | MSG_NOSIGNAL);
        self->answered = sent > 0 ? (Py_ssize_t)sent : 0;
        self->may_answer = 0;
    }
    pthread_mutex_unlock(&self->lock);
}

static int carry_out(writer *self) {
    for (Py_ssize_t number = 0; number < self->step_count; number++) {
        const step *own = &self->steps[number];
        if (own->is_answer) {
            send_answer(self, own->fd, self->parts + own->first);
            continue;
        }
        struct iovec *parts = self->parts + own->first;
        int error = own->count == 0       ? sync_file(own->fd)
                    : own->direct_fd >= 0 ? write_direct(own->direct_fd, own->fd, parts, own->count, own->position,
                                                         &self->direct_buffer)
                                          : write_parts(own->fd, parts, own->count, own->position);
        if (error != 0) return error;
    }
    return 0;
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void *run(void *argument) {
    writer *self = argument;
    pthread_mutex_lock(&self->lock);
    for (;;) {
        while (!self->is_ending && (!self->has_job || self->is_done)) pthread_cond_wait(&self->changed, &self->lock);
        if (!self->has_job || self->is_done) break;
        pthread_mutex_unlock(&self->lock);
        double begun_s = now_s();
        int error = carry_out(self);
        double took_s = now_s() - begun_s;
        pthread_mutex_lock(&self->lock);
        self->took_s = took_s;
        self->error = error;
        self->may_answer = 0;
        if (self->answered < self->answer_bytes) self->is_awaited = 1; /* the rest of it is the loop's to send */
        __atomic_store_n(&self->is_done, 1, __ATOMIC_RELEASE);
        if (self->has_waiter) pthread_cond_broadcast(&self->changed);
        if (!self->is_awaited && error == 0) continue;
        pthread_mutex_unlock(&self->lock); /* or whom this wakes would have to wait for the lock */
        while (write(self->done_pipe[1], "", 1) < 0 && errno == EINTR) continue;
        pthread_mutex_lock(&self->lock);
    }
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

static void forget_job(writer *self) {
    for (Py_ssize_t number = 0; number < self->part_count; number++) PyBuffer_Release(&self->views[number]);
    PyMem_Free(self->views);
    PyMem_Free(self->parts);
    self->views = NULL;
    self->parts = NULL;
    self->part_count = self->step_count = 0;
}

static int writer_init(writer *self, PyObject *args, PyObject *kwargs) {
    sigset_t all, before;
    if (!PyArg_ParseTuple(args, "")) return -1;
    if (self->is_running) return 0;
    if (pipe(self->done_pipe) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    for (int end = 0; end < 2; end++) {
        fcntl(self->done_pipe[end], F_SETFD, FD_CLOEXEC);
        fcntl(self->done_pipe[end], F_SETFL, O_NONBLOCK);
    }
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->changed, NULL);
    sigfillset(&all); /* signals belong to Python's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&self->thread, NULL, run, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    self->is_running = error == 0;
    if (error == 0) return 0;
    close(self->done_pipe[0]);
    close(self->done_pipe[1]);
    errno = error;
    PyErr_SetFromErrno(PyExc_OSError);
    return -1;
}

static int is_answer_step(PyObject *object) {
    return PyTuple_CheckExact(object) && PyTuple_GET_SIZE(object) == 2;
}

/* Whether it is (descriptor, position, buffers) or that with a direct descriptor. */
static int is_write_step(PyObject *object) {
    return PyTuple_CheckExact(object) && (PyTuple_GET_SIZE(object) == 3 || PyTuple_GET_SIZE(object) == 4);
}

static int add_answer(writer *self, PyObject *object, Py_ssize_t room) {
    int64_t fd;
    PyObject *bytes = PyTuple_GET_ITEM(object, 1);
    step *own = &self->steps[self->step_count];
    if (!is_int_within(PyTuple_GET_ITEM(object, 0), 0, INT32_MAX, &fd) || !PyBytes_CheckExact(bytes) ||
        self->may_answer || room == 0) {
        PyErr_SetString(PyExc_TypeError, "an answer is one (socket, bytes) among the steps");
        return -1;
    }
    *own = (step){.fd = (int)fd, .direct_fd = -1, .first = self->part_count, .count = 1, .is_answer = 1};
    if (PyObject_GetBuffer(bytes, &self->views[self->part_count], PyBUF_SIMPLE) < 0) return -1;
    self->parts[self->part_count].iov_base = PyBytes_AS_STRING(bytes);
    self->parts[self->part_count++].iov_len = (size_t)PyBytes_GET_SIZE(bytes);
    self->may_answer = 1;
    self->answer_bytes = PyBytes_GET_SIZE(bytes);
    self->step_count++;
    return 0;
}

static int add_step(writer *self, PyObject *object, Py_ssize_t room) {
    int64_t fd, direct_fd = -1, position = 0;
    step *own = &self->steps[self->step_count];
    if (is_answer_step(object)) return add_answer(self, object, room);
    PyObject *buffers = NULL;
    int is_write = is_write_step(object), is_direct = is_write && PyTuple_GET_SIZE(object) == 4;
    if (is_write) buffers = PyTuple_GET_ITEM(object, 2);
    if (!is_int_within(is_write ? PyTuple_GET_ITEM(object, 0) : object, 0, INT32_MAX, &fd) ||
        (is_direct && !is_int_within(PyTuple_GET_ITEM(object, 3), 0, INT32_MAX, &direct_fd)) ||
        (is_write && (!is_int_within(PyTuple_GET_ITEM(object, 1), 0, INT64_MAX, &position) ||
                      !PyList_CheckExact(buffers) || PyList_GET_SIZE(buffers) == 0 ||
                      PyList_GET_SIZE(buffers) > room))) {
        PyErr_SetString(PyExc_TypeError, "a step is (descriptor, position, [buffer, ...]), perhaps with a direct "
                                         "descriptor, or a descriptor");
        return -1;
    }
    own->fd = (int)fd;
    own->direct_fd = (int)direct_fd;
    own->position = position;
    own->first = self->part_count;
    own->count = 0;
    own->is_answer = 0;
    for (; is_write && own->count < PyList_GET_SIZE(buffers); own->count++) {
        Py_buffer *view = &self->views[self->part_count];
        if (PyObject_GetBuffer(PyList_GET_ITEM(buffers, own->count), view, PyBUF_SIMPLE) < 0) return -1;
        self->parts[self->part_count].iov_base = view->buf;
        self->parts[self->part_count++].iov_len = (size_t)view->len;
    }
    self->step_count++;
    return 0;
}

static Py_ssize_t count_buffers(PyObject *steps) {
    Py_ssize_t total = 0;
    for (Py_ssize_t number = 0; number < PyList_GET_SIZE(steps); number++) {
        PyObject *one = PyList_GET_ITEM(steps, number);
        if (is_answer_step(one)) total++;
        if (is_write_step(one) && PyList_CheckExact(PyTuple_GET_ITEM(one, 2)))
            total += PyList_GET_SIZE(PyTuple_GET_ITEM(one, 2));
    }
    return total;
}

static PyObject *writer_submit(writer *self, PyObject *const *args, Py_ssize_t count) {
    if (!self->is_running || self->has_job) return PyErr_Format(PyExc_RuntimeError, "closed, or a job is under way");
    PyObject *steps = count > 0 ? args[0] : Py_None;
    int is_quiet = count > 1 && args[1] == Py_True;
    if (count > 2 || !PyList_CheckExact(steps) || PyList_GET_SIZE(steps) > STEPS_MAX)
        return PyErr_Format(PyExc_TypeError, "submit takes a list of at most %d steps, and is_quiet", STEPS_MAX);
    Py_ssize_t buffers = count_buffers(steps);
    self->views = PyMem_Calloc((size_t)buffers + 1, sizeof *self->views);
    self->parts = PyMem_Calloc((size_t)buffers + 1, sizeof *self->parts);
    self->may_answer = 0;
    self->answer_bytes = self->answered = 0;
    int is_bad = self->views == NULL || self->parts == NULL;
    if (is_bad) PyErr_NoMemory();
    for (Py_ssize_t number = 0; !is_bad && number < PyList_GET_SIZE(steps); number++)
        is_bad = add_step(self, PyList_GET_ITEM(steps, number), buffers - self->part_count) < 0;
    if (is_bad) {
        forget_job(self);
        return NULL;
    }
    pthread_mutex_lock(&self->lock);
    self->has_job = 1;
    self->is_done = 0;
    self->is_awaited = !is_quiet;
    self->is_emptied = 0;
    pthread_mutex_unlock(&self->lock);
    pthread_cond_signal(&self->changed);
    Py_RETURN_NONE;
}

static void wait_until_done(writer *self) {
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&self->lock);
    self->has_waiter = 1;
    while (self->has_job && !self->is_done) pthread_cond_wait(&self->changed, &self->lock);
    self->has_waiter = 0;
    pthread_mutex_unlock(&self->lock);
    Py_END_ALLOW_THREADS
}

static int is_job_done(writer *self) { return self->has_job && __atomic_load_n(&self->is_done, __ATOMIC_ACQUIRE); }

/* The pipe says nothing but that it may be worth to look. */
static void empty_pipe(writer *self) {
    char bytes[16];
    while (read(self->done_pipe[0], bytes, sizeof bytes) < 0 && errno == EINTR) continue;
    self->is_emptied = 1;
}

static PyObject *writer_clear(writer *self, PyObject *nothing) {
    if (self->is_running) empty_pipe(self);
    Py_RETURN_NONE;
}

static PyObject *writer_finish(writer *self, PyObject *nothing) {
    if (!self->is_running || !self->has_job) return PyErr_Format(PyExc_RuntimeError, "no job is under way");
    if (!is_job_done(self)) wait_until_done(self);
    pthread_mutex_lock(&self->lock);
    self->has_job = self->is_done = 0;
    pthread_mutex_unlock(&self->lock);
    if ((self->is_awaited || self->error != 0) && !self->is_emptied) empty_pipe(self);
    forget_job(self);
    if (self->error == 0) return PyFloat_FromDouble(self->took_s);
    errno = self->error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

/* Whether there is a job that is done, so that `finish` would not wait. */
static PyObject *writer_is_done(writer *self, PyObject *nothing) { return PyBool_FromLong(is_job_done(self)); }

/* Have the end of a job that was submitted quietly told after all. False: it has come, and nothing will be. */
static PyObject *writer_await_end(writer *self, PyObject *nothing) {
    if (!self->is_running) Py_RETURN_FALSE;
    pthread_mutex_lock(&self->lock);
    int is_under_way = self->has_job && !self->is_done;
    if (is_under_way) self->is_awaited = 1;
    pthread_mutex_unlock(&self->lock);
    return PyBool_FromLong(is_under_way);
}

/* Stop the answer; how many bytes of it were sent before that. */
static PyObject *writer_take_back(writer *self, PyObject *nothing) {
    if (!self->is_running) return PyLong_FromLong(0);
    pthread_mutex_lock(&self->lock);
    self->may_answer = 0;
    Py_ssize_t answered = self->answered;
    pthread_mutex_unlock(&self->lock);
    return PyLong_FromSsize_t(answered);
}

static void end_thread(writer *self) {
    if (!self->is_running) return;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&self->lock);
    self->is_ending = 1;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->lock);
    pthread_join(self->thread, NULL);
    Py_END_ALLOW_THREADS
    self->is_running = 0;
    close(self->done_pipe[0]);
    close(self->done_pipe[1]);
    pthread_mutex_destroy(&self->lock);
    pthread_cond_destroy(&self->changed);
    free(self->direct_buffer);
    self->direct_buffer = NULL;
    forget_job(self);
}

static PyObject *writer_close(writer *self, PyObject *nothing) {
    end_thread(self);
    Py_RETURN_NONE;
}

static PyObject *writer_fileno(writer *self, PyObject *nothing) {
    if (!self->is_running) return PyErr_Format(PyExc_RuntimeError, "closed");
    return PyLong_FromLong(self->done_pipe[0]);
}

static void writer_dealloc(writer *self) {
    PyTypeObject *type = Py_TYPE(self);
    end_thread(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"submit", (PyCFunction)(void (*)(void))writer_submit, METH_FASTCALL, NULL},
    {"finish", (PyCFunction)writer_finish, METH_NOARGS, NULL},
    {"is_done", (PyCFunction)writer_is_done, METH_NOARGS, NULL},
    {"await_end", (PyCFunction)writer_await_end, METH_NOARGS, NULL},
    {"take_back", (PyCFunction)writer_take_back, METH_NOARGS, NULL},
    {"clear", (PyCFunction)writer_clear, METH_NOARGS, NULL},
    {"fileno", (PyCFunction)writer_fileno, METH_NOARGS, NULL},
    {"close", (PyCFunction)writer_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_init, writer_init},
    {Py_tp_dealloc, writer_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_new, PyType_GenericNew},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "native._log.Writer",
    .basicsize = sizeof(writer),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = type_slots,
};

int writer_add_type(PyObject *module) {
    PyObject *type = PyType_FromSpec(&spec);
    if (type == NULL) return -1;
    int result = PyModule_AddObjectRef(module, "Writer", type);
    Py_DECREF(type);
    return result;
}
