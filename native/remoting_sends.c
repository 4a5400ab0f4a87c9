/* The sends of a turn: the typed header of one, and PlainSends, which makes messages of those that only have to
   be checked against an open topic. */

#include "remoting.h"

static const char *const long_names[HEADER_SLOTS] = {
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp",
    "flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch", "bname"};

static int long_name(const Slice *key) {
    for (int at = 0; at < HEADER_SLOTS; at++)
        if (slice_is(key, long_names[at], strlen(long_names[at]))) return at;
    return -1;
}

/* Finds the values of the one-letter form, which a field `b` gives away, or else of the one with whole names. */
static Outcome find_values(const Head *head, const Slice *values[HEADER_SLOTS]) {
    const Slice *letters[HEADER_SLOTS] = {NULL}, *names[HEADER_SLOTS] = {NULL};
    for (int at = 0; at < head->field_count; at++) {
        const Slice *key = &head->fields[at].key, *value = &head->fields[at].value;
        bool is_letter = key->size == 1 && key->start[0] >= 'a' && key->start[0] <= 'n';
        int place = is_letter ? key->start[0] - 'a' : long_name(key);
        const Slice **found = is_letter ? letters : names;
        if (place < 0) {
            if (value->is_escaped) return UNUSUAL;
            continue;
        }
        if (found[place] != NULL) return UNUSUAL;
        found[place] = value;
    }
    const Slice **used = letters[H_TOPIC] != NULL ? letters : names, **unused = used == letters ? names : letters;
    for (int at = 0; at < HEADER_SLOTS; at++) {
        if (unused[at] != NULL && unused[at]->is_escaped) return UNUSUAL;
        values[at] = used[at];
    }
    for (int at = H_PRODUCER_GROUP; at <= H_FLAG; at++)
        if (values[at] == NULL) return UNUSUAL;
    return DONE;
}

static Outcome take_int(const Slice *value, int64_t most, PyObject **made) {
    int64_t number;
    if (slice_number(value, &number) != DONE || number > most) return UNUSUAL;
    *made = PyLong_FromLongLong(number);
    return *made == NULL ? FAILED : DONE;
}

/* One of the words for true and false; the empty text as well if it means false. */
static Outcome take_bool(const Slice *value, bool is_empty_false, PyObject **made) {
    bool is_true = SLICE_IS(value, "true") || SLICE_IS(value, "1");
    if (!is_true && !SLICE_IS(value, "false") && !SLICE_IS(value, "0") && !(is_empty_false && value->size == 0))
        return UNUSUAL;
    *made = Py_NewRef(is_true ? Py_True : Py_False);
    return DONE;
}

static Outcome take_optional(const Slice *value, int place, PyObject **made) {
    bool is_absent = value == NULL || (value->size == 0 && place != H_BATCH);
    switch (place) {
        case H_RECONSUMED:
            if (!is_absent) return take_int(value, INT32_MAX, made);
            *made = PyLong_FromLong(0);
            return *made == NULL ? FAILED : DONE;
        case H_RECONSUMED_MAX:
            if (!is_absent) return take_int(value, INT32_MAX, made);
            *made = Py_NewRef(Py_None);
            return DONE;
        default:
            if (value != NULL) return take_bool(value, place == H_UNIT_MODE, made);
            *made = Py_NewRef(Py_False);
            return DONE;
    }
}

static Outcome take_value(const Slice *value, int place, PyObject *known[3], PyObject **made) {
    Outcome outcome = DONE;
    switch (place) {
        case H_PRODUCER_GROUP: case H_TOPIC: case H_DEFAULT_TOPIC:
            *made = slice_string(value, &known[place], &outcome);
            return outcome;
        case H_DEFAULT_QUEUES: case H_QUEUE_ID: case H_SYS_FLAG: case H_FLAG:
            return take_int(value, INT32_MAX, made);
        case H_BORN:
            return take_int(value, INT64_MAX, made);
        case H_PROPERTIES:
            *made = value == NULL ? PyUnicode_New(0, 0) : slice_string(value, NULL, &outcome);
            return *made == NULL && outcome == DONE ? FAILED : outcome;
        case H_BROKER_NAME:
            *made = value == NULL ? Py_NewRef(Py_None) : slice_string(value, NULL, &outcome);
            return outcome;
        default:
            return take_optional(value, place, made);
    }
}

Outcome read_send_header(const Layout *layout, const Head *head, PyObject *known[3], PyObject **made) {
    const Slice *values[HEADER_SLOTS];
    Outcome outcome = find_values(head, values);
    if (outcome != DONE) return outcome;
    PyObject *header = layout_new(layout, true);
    if (header == NULL) return FAILED;
    for (int at = 0; at < HEADER_SLOTS; at++) {
        outcome = take_value(values[at], at, known, slot_of(layout, header, at));
        if (outcome != DONE) {
            Py_DECREF(header);
            return outcome;
        }
    }
    *made = header;
    return DONE;
}

static inline bool ends_with(const char *start, const char *end, const char *word, size_t size) {
    return (size_t)(end - start) >= size && memcmp(end - size, word, size) == 0;
}

bool find_unique_key(const char *properties, Py_ssize_t size, const char **key, Py_ssize_t *key_size) {
    const char *end = properties + size, *at = properties, *found = NULL;
    if (memmem(properties, (size_t)size, "TIMER_D", 7) != NULL) return false;
    while ((at = memchr(at, 1, (size_t)(end - at))) != NULL) {
        if (ends_with(properties, at, "DELAY", 5) || ends_with(properties, at, "TRAN_MSG", 8) ||
            ends_with(properties, at, "CLUSTER", 7) || ends_with(properties, at, "MSG_REGION", 10) ||
            ends_with(properties, at, "TRACE_ON", 8) || ends_with(properties, at, "_SYS_MSG_PRIORITY_", 18))
            return false;
        if (found == NULL && ends_with(properties, at, "UNIQ_KEY", 8)) {
            if (at - 8 != properties && at[-9] != 2) return false;
            found = at + 1;
        }
        at++;
    }
    if (found == NULL) return false;
    const char *stop = memchr(found, 2, (size_t)(end - found));
    *key = found;
    *key_size = (stop == NULL ? end : stop) - found;
    for (at = found; at < found + *key_size; at++) {
        char letter = *at | 0x20;
        if ((*at < '0' || *at > '9') && (letter < 'a' || letter > 'z')) return false;
    }
    return *key_size > 0;
}
