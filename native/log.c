/* The module native._log: the log's hot path, a batch in each call. Python has all of it too (commitlog);
   native/__init__.py says how the two go together. */

#include "log.h"

#include "crc32.h"

static FUNCTION(log_crc32) {
    Py_buffer data;
    if (takes("crc32", count, 1) < 0) return NULL;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0) return NULL;
    uint32_t crc = crc32_of(0, data.buf, (size_t)data.len);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}

#define OFFER(name) {#name, (PyCFunction)(void (*)(void))log_##name, METH_FASTCALL, NULL}

static PyMethodDef functions[] = {
    OFFER(bodies),       OFFER(crc32),          OFFER(decode_pushes), OFFER(encode_numbers), OFFER(encode_records),
    OFFER(encode_units), OFFER(find_channel),   OFFER(key_units),      OFFER(lay_out),       OFFER(message_layout), OFFER(parse_units),
    OFFER(record_columns), OFFER(sequence_runs), OFFER(sort_keys),     OFFER(verify_entries),
    {NULL, NULL, 0, NULL},
};

static int log_exec(PyObject *module) {
    crc32_prepare();
    if (writer_add_type(module) < 0) return -1;
    return PyModule_AddIntConstant(module, "VERSION", 15);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, log_exec}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "native._log",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__log(void) { return PyModuleDef_Init(&definition); }
