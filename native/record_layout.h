/* The layout of a message record, made by `python -m remoting.record_layout` of the table in
   remoting/record_layout.py. */
#ifndef LEDGERMQ_RECORD_LAYOUT_H
#define LEDGERMQ_RECORD_LAYOUT_H

/* With two IPv4 hosts. */
#define RECORD_SIZE_AT 0
#define RECORD_MAGIC_AT 4
#define RECORD_BODY_CRC_AT 8
#define RECORD_QUEUE_ID_AT 12
#define RECORD_FLAG_AT 16
#define RECORD_QUEUE_OFFSET_AT 20
#define RECORD_PHYSICAL_OFFSET_AT 28
#define RECORD_SYS_FLAG_AT 36
#define RECORD_BORN_TIMESTAMP_MS_AT 40
#define RECORD_BORN_HOST_AT 48
#define RECORD_STORE_TIMESTAMP_MS_AT 56
#define RECORD_STORE_HOST_AT 64
#define RECORD_RECONSUME_TIMES_AT 72
#define RECORD_PREPARED_TRANSACTION_OFFSET_AT 76
#define RECORD_BODY_BYTES_AT 84
#define RECORD_BODY_AT 88
#define RECORD_BYTES_MIN 91
#define RECORD_HOST_BYTES 8

#define RECORD_MAGIC_V1 0xdaa320a7u
#define HOSTS_V6 0x30

#endif
