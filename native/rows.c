/* Records back to back, as the answers of pulls bring them, into the columns of an Arrow batch
   (rocketmq_spark/source/rows.py). The columns' buffers are laid out in memory that the caller lends. */

#include "record.h"

#include <stdio.h>

#define BUFFER_ALIGNMENT 64
#define HOST_TEXT_MAX 28 /* 255.255.255.255:-2147483648 and the end mark */
#define ID_CHARS 32
#define TIME_MS_MIN (-62135596800000) /* the years 1 to 9999 */
#define TIME_MS_MAX 253402300799999
#define COMPRESSED 1

enum { UNIQUE, KEYS, TAGS, NAMES };
static const struct {
    const char *text;
    Py_ssize_t bytes;
} names[NAMES] = {{"UNIQ_KEY\x01", 9}, {"KEYS\x01", 5}, {"TAGS\x01", 5}};

enum { INT_32, INT_64, TIME, MESSAGE_ID, KEYS_TEXT, TAGS_TEXT, BODY, HOST_TEXT };
/* In the order of compiled_rows.COLUMNS. */
static const struct {
    int kind, at;
} columns[] = {
    {INT_64, RECORD_QUEUE_OFFSET_AT},
    {INT_64, RECORD_PHYSICAL_OFFSET_AT},
    {MESSAGE_ID, RECORD_STORE_HOST_AT},
    {KEYS_TEXT, 0},
    {TAGS_TEXT, 0},
    {BODY, RECORD_BODY_AT},
    {TIME, RECORD_BORN_TIMESTAMP_MS_AT},
    {TIME, RECORD_STORE_TIMESTAMP_MS_AT},
    {HOST_TEXT, RECORD_BORN_HOST_AT},
    {INT_32, RECORD_RECONSUME_TIMES_AT},
    {INT_32, RECORD_FLAG_AT},
    {INT_32, RECORD_SYS_FLAG_AT},
};
#define COLUMNS ((int)(sizeof columns / sizeof *columns))
#define WITH_TEXTS (1 << 2 | 1 << 3 | 1 << 4) /* the columns that are made of properties */
#define INFLATED (1 << COLUMNS) /* besides the columns: compressed bodies are Python's */

typedef struct {
    const uint8_t *at, *text[NAMES];
    int32_t body_bytes, text_bytes[NAMES]; /* no bytes: not there */
} row;

typedef struct {
    row *rows;
    Py_ssize_t count, room, texts[NAMES];
    int64_t body_bytes, text_bytes[NAMES];
} row_list;

static int is_text(const uint8_t *at, Py_ssize_t bytes) {
    if (is_ascii(at, bytes)) return 1;
    PyObject *text = PyUnicode_DecodeUTF8((const char *)at, bytes, NULL);
    if (text == NULL) PyErr_Clear();
    Py_XDECREF(text);
    return text != NULL;
}

/* The values of the properties that are columns; of repeated ones the last counts. 0: one is no text. */
static int find_texts(const record *found, row *to) {
    const uint8_t *at = found->properties, *end = at + found->properties_bytes;
    while (at < end) {
        const uint8_t *piece_end = memchr(at, VALUE_END, (size_t)(end - at));
        if (piece_end == NULL) piece_end = end;
        for (int name = 0; name < NAMES; name++) {
            Py_ssize_t bytes = piece_end - at - names[name].bytes;
            if (bytes <= 0 || memcmp(at, names[name].text, (size_t)names[name].bytes) != 0) continue;
            to->text[name] = piece_end - bytes;
            to->text_bytes[name] = (int32_t)bytes;
            break;
        }
        at = piece_end + 1;
    }
    for (int name = 0; name < NAMES; name++)
        if (!is_text(to->text[name], to->text_bytes[name])) return 0;
    return 1;
}

/* A new row behind the others, all zero; NULL with an exception. */
static row *add_row(row_list *list) {
    if (list->count == list->room) {
        Py_ssize_t room = list->room == 0 ? 1024 : 2 * list->room;
        row *rows = PyMem_Realloc(list->rows, (size_t)room * sizeof *rows);
        if (rows == NULL) return (row *)PyErr_NoMemory();
        list->rows = rows;
        list->room = room;
    }
    row *added = &list->rows[list->count++];
    memset(added, 0, sizeof *added);
    return added;
}

/* 1: the rows of all records were added; 0: one is not ordinary, or not of these offsets; -1: exception. */
static int find_rows(const uint8_t *at, Py_ssize_t left, int64_t start, int64_t stop, int64_t wanted, row_list *list) {
    record found;
    while (left > 0) {
        int32_t size = left < RECORD_BYTES_MIN ? 0 : get_i32(at);
        if (size < RECORD_BYTES_MIN || size > left || !read_record(at, size, &found)) return 0;
        int64_t offset = get_i64(at + RECORD_QUEUE_OFFSET_AT);
        if (offset < start || offset >= stop) return 0;
        if (wanted & INFLATED && get_i32(at + RECORD_SYS_FLAG_AT) & COMPRESSED) return 0;
        row *added = add_row(list);
        if (added == NULL) return -1;
        added->at = at;
        added->body_bytes = get_i32(at + RECORD_BODY_BYTES_AT);
        if (wanted & WITH_TEXTS && !find_texts(&found, added)) return 0;
        list->body_bytes += added->body_bytes;
        for (int name = 0; name < NAMES; name++) {
            list->text_bytes[name] += added->text_bytes[name];
            list->texts[name] += added->text_bytes[name] > 0;
        }
        at += size;
        left -= size;
    }
    return 1;
}

/* Where the buffers of a column stand in the lent memory. */
typedef struct {
    int64_t nulls, validity, ends, values, value_bytes;
} place;

static int64_t reserve(int64_t *used, int64_t bytes) {
    int64_t at = *used;
    *used += (bytes + BUFFER_ALIGNMENT - 1) / BUFFER_ALIGNMENT * BUFFER_ALIGNMENT;
    return at;
}

static place reserve_texts(const row_list *list, Py_ssize_t nulls, int64_t bytes, int64_t *used) {
    place found = {.nulls = nulls, .value_bytes = bytes};
    found.validity = nulls ? reserve(used, (list->count + 7) / 8) : 0;
    found.ends = reserve(used, 4 * ((int64_t)list->count + 1));
    found.values = reserve(used, bytes);
    return found;
}

static place reserve_column(const row_list *list, int kind, int64_t *used) {
    int name = kind == KEYS_TEXT ? KEYS : TAGS;
    place found = {0};
    switch (kind) {
    case MESSAGE_ID:
        return reserve_texts(list, 0, list->text_bytes[UNIQUE] + (list->count - list->texts[UNIQUE]) * ID_CHARS, used);
    case KEYS_TEXT:
    case TAGS_TEXT: return reserve_texts(list, list->count - list->texts[name], list->text_bytes[name], used);
    case BODY: return reserve_texts(list, 0, list->body_bytes, used);
    case HOST_TEXT: return reserve_texts(list, 0, (int64_t)list->count * HOST_TEXT_MAX, used);
    default:
        found.value_bytes = (int64_t)list->count * (kind == INT_32 ? 4 : 8);
        found.values = reserve(used, found.value_bytes);
        return found;
    }
}

static void fill_numbers(const row_list *list, int kind, int at, uint8_t *values) {
    for (Py_ssize_t number = 0; number < list->count; number++) {
        const uint8_t *from = list->rows[number].at + at;
        if (kind == INT_32) {
            int32_t value = get_i32(from);
            memcpy(values + 4 * number, &value, sizeof value);
            continue;
        }
        int64_t value = get_i64(from);
        if (kind == TIME) value = (value < TIME_MS_MIN ? TIME_MS_MIN : value > TIME_MS_MAX ? TIME_MS_MAX : value) * 1000;
        memcpy(values + 8 * number, &value, sizeof value);
    }
}

static void write_id(const uint8_t *at, int host_at, uint8_t *to) {
    static const char digits[] = "0123456789ABCDEF";
    uint8_t raw[ID_CHARS / 2];
    memcpy(raw, at + host_at, 8);
    memcpy(raw + 8, at + RECORD_PHYSICAL_OFFSET_AT, 8);
    for (size_t number = 0; number < sizeof raw; number++) {
        to[2 * number] = (uint8_t)digits[raw[number] >> 4];
        to[2 * number + 1] = (uint8_t)digits[raw[number] & 0xF];
    }
}

/* The text of a host in `text`, which `last` was made for. How many characters it has. */
static int write_host(const uint8_t *host, const uint8_t **last, char *text, int known) {
    if (*last != NULL && memcmp(host, *last, 8) == 0) return known;
    *last = host;
    return snprintf(text, HOST_TEXT_MAX, "%d.%d.%d.%d:%d", host[0], host[1], host[2], host[3], get_i32(host + 4));
}

/* How many bytes of values there are. */
static int64_t fill_texts(const row_list *list, int kind, int at, const place *to, uint8_t *memory) {
    int name = kind == KEYS_TEXT ? KEYS : kind == TAGS_TEXT ? TAGS : UNIQUE, host_bytes = 0;
    uint8_t *values = memory + to->values, *validity = to->nulls ? memory + to->validity : NULL;
    const uint8_t *last_host = NULL;
    char host[HOST_TEXT_MAX];
    int32_t end = 0;
    if (validity != NULL) memset(validity, 0, (size_t)(list->count + 7) / 8);
    memcpy(memory + to->ends, &end, sizeof end);
    for (Py_ssize_t number = 0; number < list->count; number++) {
        const row *from = &list->rows[number];
        const uint8_t *value = from->text[name];
        int32_t bytes = from->text_bytes[name];
        if (kind == BODY) {
            value = from->at + at;
            bytes = from->body_bytes;
        } else if (kind == HOST_TEXT) {
            bytes = host_bytes = write_host(from->at + at, &last_host, host, host_bytes);
            value = (const uint8_t *)host;
        } else if (kind == MESSAGE_ID && bytes == 0) {
            write_id(from->at, at, values + end);
            value = NULL;
            end += ID_CHARS;
        }
        if (validity != NULL && bytes > 0) validity[number / 8] |= (uint8_t)(1 << number % 8);
        if (bytes > 0) memcpy(values + end, value, (size_t)bytes);
        end += bytes;
        memcpy(memory + to->ends + 4 * (number + 1), &end, sizeof end);
    }
    return end;
}

static PyObject *fill(const row_list *list, int64_t wanted, uint8_t *memory) {
    int64_t used = 0;
    PyObject *places = PyList_New(0);
    for (int column = 0; places != NULL && column < COLUMNS; column++) {
        if (!(wanted >> column & 1)) continue;
        int kind = columns[column].kind, at = columns[column].at;
        place to = reserve_column(list, kind, &used);
        if (kind <= TIME)
            fill_numbers(list, kind, at, memory + to.values);
        else
            to.value_bytes = fill_texts(list, kind, at, &to, memory);
        PyObject *item = Py_BuildValue("LLLLL", (long long)to.nulls, (long long)to.validity, (long long)to.ends,
                                       (long long)to.values, (long long)to.value_bytes);
        if (item == NULL || PyList_Append(places, item) < 0) Py_CLEAR(places);
        Py_XDECREF(item);
    }
    return places == NULL ? NULL : Py_BuildValue("nN", list->count, places);
}

/* The bytes that all buffers take; -1 when a column has too many for its offsets. */
static int64_t bytes_needed(const row_list *list, int64_t wanted) {
    int64_t used = 0;
    for (int column = 0; column < COLUMNS; column++) {
        if (!(wanted >> column & 1)) continue;
        place found = reserve_column(list, columns[column].kind, &used);
        if (found.value_bytes > INT32_MAX && columns[column].kind > TIME) return -1;
    }
    return used;
}

static PyObject *rows_of(PyObject *pieces, int64_t start, int64_t stop, int64_t wanted, const Py_buffer *memory) {
    row_list list = {0};
    PyObject *result = NULL;
    int is_found = 1;
    Py_ssize_t count = PyList_GET_SIZE(pieces), opened = 0;
    Py_buffer *views = PyMem_New(Py_buffer, count + 1);
    if (views == NULL) return PyErr_NoMemory();
    for (; opened < count && is_found > 0; opened++) {
        if (PyObject_GetBuffer(PyList_GET_ITEM(pieces, opened), &views[opened], PyBUF_SIMPLE) < 0) {
            is_found = -1;
            break;
        }
        is_found = find_rows(views[opened].buf, views[opened].len, start, stop, wanted, &list);
    }
    int64_t needed = is_found > 0 ? bytes_needed(&list, wanted) : -1;
    if (is_found > 0 && needed >= 0)
        result = needed > memory->len ? PyLong_FromLongLong(needed) : fill(&list, wanted, memory->buf);
    else if (is_found >= 0)
        result = Py_NewRef(Py_None);
    while (opened > 0) PyBuffer_Release(&views[--opened]);
    PyMem_Free(views);
    PyMem_Free(list.rows);
    return result;
}

/* record_columns(pieces, start, stop, wanted, memory) -> (rows, places) of the records in all pieces, whose columns
   are in the memory now; a number when so many bytes of memory are needed; None when a record is not ordinary, or
   has none of the offsets from `start` to before `stop`. */
FUNCTION(log_record_columns) {
    int64_t start, stop, wanted;
    Py_buffer memory;
    if (takes("record_columns", count, 5) < 0) return NULL;
    if (!PyList_CheckExact(args[0]) || !is_int_within(args[1], INT64_MIN, INT64_MAX, &start) ||
        !is_int_within(args[2], INT64_MIN, INT64_MAX, &stop) || !is_int_within(args[3], 0, 2 * INFLATED - 1, &wanted))
        return PyErr_Format(PyExc_TypeError, "record_columns takes a list, two offsets, columns and memory");
    if (PyObject_GetBuffer(args[4], &memory, PyBUF_WRITABLE) < 0) return NULL;
    PyObject *result = rows_of(args[0], start, stop, wanted, &memory);
    PyBuffer_Release(&memory);
    return result;
}
