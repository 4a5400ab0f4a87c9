/* The queues that one batch touches, found by topic bytes and queue id without making a Python object. */
#ifndef LEDGERMQ_QUEUE_TABLE_H
#define LEDGERMQ_QUEUE_TABLE_H

#include "wire.h"

typedef struct {
    const uint8_t *topic; /* borrowed */
    Py_ssize_t topic_bytes;
    int32_t queue_id;
    int64_t next_offset;
    Py_ssize_t count;   /* messages of the batch in this queue */
    PyObject *key;      /* owned; what the queue is called in Python */
    PyObject *units;    /* owned; bytes that are being filled, or NULL */
} queue_entry;

typedef struct {
    queue_entry *entries; /* in the order of their first message */
    Py_ssize_t used;
    uint32_t *places; /* 0: free; else 1 + a number of an entry */
    uint32_t mask;
} queue_table;

/* Room for `count` queues; -1 with an exception when there is no memory. */
int queue_table_init(queue_table *table, Py_ssize_t count);
void queue_table_free(queue_table *table);

/* The queue's entry; a new one has next_offset -1 and nothing else. Never NULL while there is room. */
queue_entry *queue_table_find(queue_table *table, const uint8_t *topic, Py_ssize_t topic_bytes,
                              int32_t queue_id);

#endif
