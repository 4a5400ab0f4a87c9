/* The module native._log: the log's hot path, a batch in each call. Python has all of it too (commitlog);
   native/__init__.py says how the two go together. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "crc32.h"

static PyObject *log_crc32(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Py_buffer data;
    if (count != 1) return PyErr_Format(PyExc_TypeError, "crc32 takes 1 argument, not %zd", count);
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0) return NULL;
    uint32_t crc = crc32_of(0, data.buf, (size_t)data.len);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}

static PyMethodDef functions[] = {
    {"crc32", (PyCFunction)(void (*)(void))log_crc32, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static int log_exec(PyObject *module) {
    crc32_prepare();
    return PyModule_AddIntConstant(module, "VERSION", 1);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, log_exec}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "native._log",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__log(void) { return PyModuleDef_Init(&definition); }
