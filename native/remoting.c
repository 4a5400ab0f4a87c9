/* The module native._remoting: from a received chunk to the messages of its sends, and to their answers, a batch
   in each call. Python has all of it too (remoting, broker); native/__init__.py says how the two go together. */

#include "remoting.h"

#include "crc32.h"

#include <structmember.h>

const char *const command_names[C_HEADER + 1] = {"code",     "opaque",  "flag",           "remark", "ext_fields",
                                                 "body",     "language", "version", "serialize_type", "header"};
const char *const header_names[HEADER_SLOTS] = {
    "producer_group", "topic",      "default_topic",   "default_topic_queue_nums", "queue_id",
    "sys_flag",       "born_timestamp_ms", "flag",     "properties",               "reconsume_times",
    "unit_mode",      "max_reconsume_times", "is_batch", "broker_name"};

int layout_of(Layout *layout, PyObject *type, const char *const *names, int count) {
    if (!PyType_Check(type)) {
        PyErr_SetString(PyExc_TypeError, "not a class");
        return -1;
    }
    layout->type = (PyTypeObject *)Py_NewRef(type);
    for (int at = 0; at < count; at++) {
        PyObject *slot = PyObject_GetAttrString(type, names[at]);
        if (slot == NULL) return -1;
        PyMemberDef *member = Py_IS_TYPE(slot, &PyMemberDescr_Type) ? ((PyMemberDescrObject *)slot)->d_member : NULL;
        bool is_slot = member != NULL && member->type == T_OBJECT_EX && !(member->flags & READONLY);
        if (is_slot) layout->offsets[at] = member->offset;
        Py_DECREF(slot);
        if (!is_slot) {
            PyErr_Format(PyExc_TypeError, "%s is not kept in a slot", names[at]);
            return -1;
        }
    }
    return 0;
}

PyObject *layout_new(const Layout *layout, bool is_leaf) {
    PyObject *made = layout->type->tp_alloc(layout->type, 0);
    if (made != NULL && is_leaf && PyType_IS_GC(layout->type)) PyObject_GC_UnTrack(made);
    return made;
}

static int hex_value(uint8_t letter) {
    if (letter >= '0' && letter <= '9') return letter - '0';
    letter |= 0x20;
    return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

/* The text without its escapes, at most as long as with them; its size, or -1 when Python has to read it. */
static Py_ssize_t unescape(const Slice *slice, uint8_t *to, bool *is_ascii) {
    const uint8_t *at = slice->start, *end = at + slice->size;
    uint8_t *out = to;
    while (at < end) {
        if (*at != '\\') {
            *out++ = *at++;
            continue;
        }
        if (end - at < 2) return -1;
        uint8_t letter = at[1];
        at += 2;
        switch (letter) {
            case '"': case '\\': case '/': *out++ = letter; continue;
            case 'b': *out++ = '\b'; continue;
            case 'f': *out++ = '\f'; continue;
            case 'n': *out++ = '\n'; continue;
            case 'r': *out++ = '\r'; continue;
            case 't': *out++ = '\t'; continue;
            case 'u': break;
            default: return -1;
        }
        if (end - at < 4) return -1;
        int unit = 0;
        for (int digit = 0; digit < 4; digit++) {
            int value = hex_value(at[digit]);
            if (value < 0) return -1;
            unit = unit << 4 | value;
        }
        at += 4;
        if (unit >= 0xD800 && unit < 0xE000) return -1;
        if (unit < 0x80) {
            *out++ = (uint8_t)unit;
            continue;
        }
        *is_ascii = false;
        if (unit < 0x800) {
            *out++ = (uint8_t)(0xC0 | unit >> 6);
        } else {
            *out++ = (uint8_t)(0xE0 | unit >> 12);
            *out++ = (uint8_t)(0x80 | (unit >> 6 & 0x3F));
        }
        *out++ = (uint8_t)(0x80 | (unit & 0x3F));
    }
    return out - to;
}

static PyObject *string_of(const uint8_t *data, Py_ssize_t size, bool is_ascii, PyObject **known, Outcome *outcome) {
    if (is_ascii && known != NULL && *known != NULL && PyUnicode_IS_COMPACT_ASCII(*known) &&
        PyUnicode_GET_LENGTH(*known) == size && memcmp(PyUnicode_1BYTE_DATA(*known), data, (size_t)size) == 0)
        return Py_NewRef(*known);
    PyObject *made = is_ascii ? PyUnicode_New(size, 127) : PyUnicode_DecodeUTF8((const char *)data, size, "strict");
    if (made == NULL) {
        *outcome = FAILED;
        if (PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
            PyErr_Clear();
            *outcome = UNUSUAL;
        }
        return NULL;
    }
    /* The empty text is shared: it must not be written to. */
    if (is_ascii && size > 0) memcpy(PyUnicode_1BYTE_DATA(made), data, (size_t)size);
    if (known != NULL) Py_XSETREF(*known, Py_NewRef(made));
    return made;
}

PyObject *slice_string(const Slice *slice, PyObject **known, Outcome *outcome) {
    if (!slice->is_escaped) return string_of(slice->start, slice->size, slice->is_ascii, known, outcome);
    uint8_t room[1024], *plain = room;
    if ((size_t)slice->size > sizeof(room)) {
        plain = PyMem_Malloc((size_t)slice->size);
        if (plain == NULL) {
            PyErr_NoMemory();
            *outcome = FAILED;
            return NULL;
        }
    }
    bool is_ascii = slice->is_ascii;
    Py_ssize_t size = unescape(slice, plain, &is_ascii);
    PyObject *made = NULL;
    if (size < 0) *outcome = UNUSUAL;
    else made = string_of(plain, size, is_ascii, known, outcome);
    if (plain != room) PyMem_Free(plain);
    return made;
}

Outcome slice_number(const Slice *slice, int64_t *number) {
    if (slice->size < 1 || slice->size > DIGITS_MAX || slice->is_escaped) return UNUSUAL;
    int64_t sum = 0;
    for (Py_ssize_t at = 0; at < slice->size; at++) {
        unsigned digit = slice->start[at] - (unsigned)'0';
        if (digit > 9) return UNUSUAL;
        sum = sum * 10 + digit;
    }
    *number = sum;
    return DONE;
}

#define FUNCTION_OF(name) ((PyCFunction)(void (*)(void))name)

static PyMethodDef functions[] = {
    {"take_units", FUNCTION_OF(pulls_take_units), METH_FASTCALL, NULL},
    {"spans_of", FUNCTION_OF(pulls_spans_of), METH_FASTCALL, NULL},
    {"gather_records", FUNCTION_OF(pulls_gather_records), METH_FASTCALL, NULL},
    {"is_plain_request", hpack_is_plain, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static int remoting_exec(PyObject *module) {
    crc32_prepare();
    if (add_frame_reader(module) < 0 || add_plain_sends(module) < 0 || add_send_answers(module) < 0 ||
        add_poller(module) < 0 || add_field_reader(module) < 0)
        return -1;
    return PyModule_AddIntConstant(module, "VERSION", 15);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, remoting_exec}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "native._remoting",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__remoting(void) { return PyModuleDef_Init(&definition); }
