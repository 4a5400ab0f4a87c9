/* The functions of the module native._log, each in the file of its subject. */
#ifndef LEDGERMQ_LOG_H
#define LEDGERMQ_LOG_H

#include "record_layout.h"
#include "wire.h"

#define ENTRY_MAGIC 1
#define ENTRY_HEADER_BYTES 48
#define ENTRY_SIZE_AT 4
#define ENTRY_INDEX_AT 8
#define ENTRY_TERM_AT 16
#define ENTRY_POSITION_AT 24
#define ENTRY_CHANNEL_AT 32
#define ENTRY_HEADER_CRC_AT 36
#define ENTRY_BODY_CRC_AT 40
#define ENTRY_BODY_BYTES_AT 44
#define INDEX_UNIT_BYTES 32

#define NOT_QUEUED 0x4 /* the bit that prepared and rollback records have in common */
#define QUEUE_UNIT_BYTES 20

#define FUNCTION(name) PyObject *name(PyObject *module, PyObject *const *args, Py_ssize_t count)

FUNCTION(log_message_layout);
FUNCTION(log_encode_records);
FUNCTION(log_lay_out);
FUNCTION(log_bodies);
FUNCTION(log_verify_entries);
FUNCTION(log_encode_units);
FUNCTION(log_find_channel);
FUNCTION(log_parse_units);
FUNCTION(log_encode_numbers);
FUNCTION(log_decode_pushes);
FUNCTION(log_sequence_runs);
FUNCTION(log_key_units);
FUNCTION(log_sort_keys);
FUNCTION(log_record_columns);

/* Entries whose headers are still blank but for magic and size, and that nobody else sees: a capsule that
   holds bytes. Returns NULL with an exception; takes over the reference. */
PyObject *packed_new(PyObject *bytes);

/* Adds the class Writer to the module. */
int writer_add_type(PyObject *module);

int takes(const char *name, Py_ssize_t count, Py_ssize_t expected);

#endif
