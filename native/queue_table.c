/* Open addressing; at most half of the places are used. */

#include "queue_table.h"

#define COUNT_MAX (1 << 28)

int queue_table_init(queue_table *table, Py_ssize_t count) {
    uint32_t places = 16;
    memset(table, 0, sizeof *table);
    if (count < 0 || count > COUNT_MAX) {
        PyErr_SetString(PyExc_OverflowError, "too many messages in a batch");
        return -1;
    }
    while ((Py_ssize_t)places < 2 * count) places *= 2;
    table->entries = PyMem_Calloc((size_t)count + 1, sizeof *table->entries);
    table->places = PyMem_Calloc(places, sizeof *table->places);
    table->mask = places - 1;
    if (table->entries == NULL || table->places == NULL) {
        queue_table_free(table);
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

void queue_table_free(queue_table *table) {
    for (Py_ssize_t number = 0; number < table->used; number++) {
        Py_XDECREF(table->entries[number].key);
        Py_XDECREF(table->entries[number].units);
    }
    PyMem_Free(table->entries);
    PyMem_Free(table->places);
    memset(table, 0, sizeof *table);
}

static uint32_t hash_of(const uint8_t *topic, Py_ssize_t topic_bytes, int32_t queue_id) {
    uint64_t hash = 0x9E3779B97F4A7C15u ^ (uint32_t)queue_id;
    for (Py_ssize_t at = 0; at < topic_bytes; at++) hash = (hash ^ topic[at]) * 0x100000001B3u;
    return (uint32_t)(hash ^ hash >> 32);
}

queue_entry *queue_table_find(queue_table *table, const uint8_t *topic, Py_ssize_t topic_bytes,
                              int32_t queue_id) {
    uint32_t place = hash_of(topic, topic_bytes, queue_id) & table->mask;
    while (table->places[place] != 0) {
        queue_entry *entry = &table->entries[table->places[place] - 1];
        if (entry->queue_id == queue_id && entry->topic_bytes == topic_bytes &&
            memcmp(entry->topic, topic, (size_t)topic_bytes) == 0)
            return entry;
        place = (place + 1) & table->mask;
    }
    queue_entry *entry = &table->entries[table->used++];
    entry->topic = topic;
    entry->topic_bytes = topic_bytes;
    entry->queue_id = queue_id;
    entry->next_offset = -1;
    table->places[place] = (uint32_t)table->used;
    return entry;
}
