/* The two codecs of a command's header: JSON, as far as clients write it, and RocketMQ's binary one. What is not
   plainly right is left to Python. */

#include "remoting.h"

typedef struct {
    const uint8_t *at, *end;
} Scan;

static inline void skip_space(Scan *scan) {
    while (scan->at < scan->end && (*scan->at == ' ' || *scan->at == '\t' || *scan->at == '\n' || *scan->at == '\r'))
        scan->at++;
}

static inline bool take(Scan *scan, uint8_t letter) {
    skip_space(scan);
    if (scan->at >= scan->end || *scan->at != letter) return false;
    scan->at++;
    return true;
}

/* For each of 8 bytes its highest bit, if it is a quote, a backslash or a control character, or not ASCII. */
static inline uint64_t marked(uint64_t word) {
    const uint64_t ones = 0x0101010101010101u, highs = 0x8080808080808080u;
    uint64_t quote = word ^ ones * '"', slash = word ^ ones * '\\';
    return ((quote - ones) | (slash - ones) | (word - ones * 0x20) | word) & highs;
}

/* The text behind an opening quote, to the closing one. */
static bool take_text(Scan *scan, Slice *slice) {
    const uint8_t *at = scan->at, *end = scan->end;
    slice->start = at;
    slice->kind = TEXT;
    slice->is_escaped = false;
    slice->is_ascii = true;
    for (;;) {
        uint64_t word;
        while (end - at >= 8) {
            memcpy(&word, at, 8);
            if (marked(word)) break;
            at += 8;
        }
        /* At most 8 bytes on the mark is reached, or the end is near. */
        for (;;) {
            if (at >= end) return false;
            uint8_t letter = *at++;
            if (letter == '"') {
                slice->size = at - 1 - slice->start;
                scan->at = at;
                return true;
            }
            if (letter < 0x20) return false;
            if (letter == '\\') {
                if (at >= end) return false;
                slice->is_escaped = true;
                at++;
                break;
            }
            if (letter >= 0x80) {
                slice->is_ascii = false;
                break;
            }
            if (end - at >= 8 && ((uintptr_t)(at - slice->start) & 7) == 0) break;
        }
    }
}

/* A whole number as JSON has it; its text is that of the same number in Python. */
static bool take_number(Scan *scan, Slice *slice) {
    const uint8_t *at = scan->at, *digits;
    slice->start = at;
    slice->kind = NUMBER;
    slice->is_escaped = false;
    slice->is_ascii = true;
    if (at < scan->end && *at == '-') at++;
    digits = at;
    while (at < scan->end && *at >= '0' && *at <= '9') at++;
    if (at == digits || at - digits > DIGITS_MAX || (*digits == '0' && at - slice->start > 1)) return false;
    if (at < scan->end && (*at == '.' || *at == 'e' || *at == 'E')) return false;
    slice->size = at - slice->start;
    scan->at = at;
    return true;
}

static bool take_word(Scan *scan, Slice *slice, const char *word, Py_ssize_t size, SliceKind kind) {
    if (scan->end - scan->at < size || memcmp(scan->at, word, (size_t)size) != 0) return false;
    *slice = (Slice){scan->at, size, kind, false, true};
    scan->at += size;
    return true;
}

static bool take_scalar(Scan *scan, Slice *slice) {
    skip_space(scan);
    if (scan->at >= scan->end) return false;
    switch (*scan->at) {
        case '"': scan->at++; return take_text(scan, slice);
        case 't': return take_word(scan, slice, "true", 4, LITERAL);
        case 'f': return take_word(scan, slice, "false", 5, LITERAL);
        case 'n': return take_word(scan, slice, "null", 4, NOTHING);
        default: return take_number(scan, slice);
    }
}

static bool take_key(Scan *scan, Slice *key) {
    return take(scan, '"') && take_text(scan, key) && !key->is_escaped && take(scan, ':');
}

static bool take_fields(Scan *scan, Head *head) {
    if (!take(scan, '{')) return false;
    if (take(scan, '}')) return true;
    do {
        if (head->field_count == FIELDS_MAX) return false;
        Field *field = &head->fields[head->field_count++];
        if (!take_key(scan, &field->key) || !take_scalar(scan, &field->value)) return false;
        if (field->value.kind == NOTHING) return false;
    } while (take(scan, ','));
    return take(scan, '}');
}

static bool to_int32(const Slice *slice, int32_t *number) {
    int64_t wide;
    bool is_negative = slice->kind == NUMBER && slice->start[0] == '-';
    Slice digits = *slice;
    digits.start += is_negative;
    digits.size -= is_negative;
    if (slice->kind != NUMBER || slice_number(&digits, &wide) != DONE) return false;
    wide = is_negative ? -wide : wide;
    *number = (int32_t)wide;
    return *number == wide;
}

enum { HAS_CODE = 1, HAS_OPAQUE = 2, HAS_FLAG = 4, HAS_VERSION = 8, HAS_LANGUAGE = 16, HAS_ALL = 31, HAS_FIELDS = 32 };

/* One member of the outermost object. */
static bool take_member(Scan *scan, Head *head, int *has) {
    Slice key, value;
    if (!take_key(scan, &key)) return false;
    if (SLICE_IS(&key, "extFields")) {
        if (*has & HAS_FIELDS) return false;
        *has |= HAS_FIELDS;
        skip_space(scan);
        if (scan->at < scan->end && *scan->at == 'n') return take_scalar(scan, &value);
        return take_fields(scan, head);
    }
    if (!take_scalar(scan, &value)) return false;
    if (SLICE_IS(&key, "code")) {
        *has |= HAS_CODE;
        return to_int32(&value, &head->code);
    }
    if (SLICE_IS(&key, "opaque")) {
        *has |= HAS_OPAQUE;
        return to_int32(&value, &head->opaque);
    }
    if (SLICE_IS(&key, "flag")) {
        *has |= HAS_FLAG;
        return to_int32(&value, &head->flag);
    }
    if (SLICE_IS(&key, "version")) {
        *has |= HAS_VERSION;
        return to_int32(&value, &head->version);
    }
    if (SLICE_IS(&key, "language")) {
        if (*has & HAS_LANGUAGE) return false;
        *has |= HAS_LANGUAGE;
        head->language = value;
        return value.kind == TEXT;
    }
    if (SLICE_IS(&key, "remark")) {
        if (head->remark.kind != ABSENT) return false;
        head->remark = value;
        return value.kind == TEXT || value.kind == NOTHING;
    }
    /* Of what nobody asks for, an escape must be a right one all the same. */
    return !value.is_escaped;
}

/* Whether the bytes are UTF-8. */
static Outcome check_utf8(const uint8_t *start, const uint8_t *end) {
    PyObject *text = PyUnicode_DecodeUTF8((const char *)start, end - start, "strict");
    if (text != NULL) {
        Py_DECREF(text);
        return DONE;
    }
    if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) return FAILED;
    PyErr_Clear();
    return UNUSUAL;
}

static inline bool is_ascii(const uint8_t *at, const uint8_t *end) {
    uint64_t word, sum = 0;
    for (; end - at >= 8; at += 8) {
        memcpy(&word, at, 8);
        sum |= word;
    }
    for (; at < end; at++) sum |= *at;
    return (sum & 0x8080808080808080u) == 0;
}

Outcome read_json_head(const uint8_t *start, const uint8_t *end, Head *head) {
    Scan scan = {start, end};
    int has = 0;
    head->field_count = 0;
    head->language_number = -1;
    head->serialize_type = 0;
    head->remark.kind = ABSENT;
    if (!take(&scan, '{')) return UNUSUAL;
    do {
        if (!take_member(&scan, head, &has)) return UNUSUAL;
    } while (take(&scan, ','));
    if (!take(&scan, '}') || (has & HAS_ALL) != HAS_ALL) return UNUSUAL;
    skip_space(&scan);
    if (scan.at != end) return UNUSUAL;
    return is_ascii(start, end) ? DONE : check_utf8(start, end);
}

static inline uint32_t big_endian(const uint8_t *at, int size) {
    uint32_t number = 0;
    for (int byte = 0; byte < size; byte++) number = number << 8 | at[byte];
    return number;
}

/* A text behind a length word of so many bytes. */
static Outcome take_counted(Scan *scan, int word_bytes, Slice *slice) {
    if (scan->end - scan->at < word_bytes) return UNUSUAL;
    uint32_t size = big_endian(scan->at, word_bytes);
    if (word_bytes == 2 && size > 0x7FFF) return UNUSUAL;
    scan->at += word_bytes;
    if (size > (uint64_t)(scan->end - scan->at)) return UNUSUAL;
    *slice = (Slice){scan->at, (Py_ssize_t)size, TEXT, false, is_ascii(scan->at, scan->at + size)};
    scan->at += size;
    return slice->is_ascii ? DONE : check_utf8(slice->start, scan->at);
}

Outcome read_binary_head(const uint8_t *start, const uint8_t *end, Head *head) {
    Scan scan = {start + 13, end};
    if (end - start < 13) return UNUSUAL;
    head->code = (int16_t)big_endian(start, 2);
    head->language_number = (int8_t)start[2] < 0 ? 0xFF : start[2];
    head->version = (int16_t)big_endian(start + 3, 2);
    head->opaque = (int32_t)big_endian(start + 5, 4);
    head->flag = (int32_t)big_endian(start + 9, 4);
    head->serialize_type = 1;
    head->field_count = 0;
    Outcome outcome = take_counted(&scan, 4, &head->remark);
    if (outcome != DONE) return outcome;
    if (head->remark.size == 0) head->remark.kind = ABSENT;
    if (scan.end - scan.at < 4) return UNUSUAL;
    uint32_t fields_bytes = big_endian(scan.at, 4);
    scan.at += 4;
    if (fields_bytes > (uint64_t)(scan.end - scan.at)) return UNUSUAL;
    scan.end = scan.at + fields_bytes;
    while (scan.at < scan.end) {
        if (head->field_count == FIELDS_MAX) return UNUSUAL;
        Field *field = &head->fields[head->field_count++];
        outcome = take_counted(&scan, 2, &field->key);
        if (outcome == DONE) outcome = take_counted(&scan, 4, &field->value);
        if (outcome != DONE) return outcome;
    }
    return DONE;
}
