/* The record kernel in C: what is done to each record of a batch, one pass over the bytes at a time.
 *
 * A batch is a run of records without gaps. A record is a 34-byte header, big-endian, and three fields:
 *
 *   0     2   3     4     8        16          24   25   26     28      32     34
 *   +-----+---+-----+-----+--------+-----------+----+----+------+-------+------+-----+-------+---------+
 *   | GQ  |ver|flags| crc | offset | timestamp |prio| 0  | klen | vlen  | hlen | key | value | headers |
 *   +-----+---+-----+-----+--------+-----------+----+----+------+-------+------+-----+-------+---------+
 *
 * The crc is CRC-32C of the record without the crc field. Headers are count(2), then keylen(2) key
 * vallen(2) value for each, filling hlen exactly; a vallen of 0xFFFF is a null value. `header.py` is the authority on
 * the format, `kernel.py` on what each function means, and `_kernel_py.py` is this file in Python: the tests hold one
 * against the other.
 *
 * Buffers are hostile. Every length is compared with what is left, in 64 bits, before it is used, and
 * nothing is assumed about alignment. A buffer may change under our hands: functions that
 * make no Python objects on their way (crc32c, stamp, scan, resync, columns, strip, outline, select, and filter without
 * `latest`) release the GIL for buffers over 64 KiB, and the others may run beside one of these. So a length is read
 * once, into a local, and what a first pass found out is checked again by the second. encode, decode and latest keep
 * the GIL.
 *
 * Where a function meets a fault it stops, and returns the fault and its position; exceptions are for wrong
 * arguments. Only the stable ABI of Python 3.11 is used.
 *
 * Over 800 lines in one file, because one compilation unit lets the compiler inline the few functions that read a
 * header and a CRC into every loop over a batch; and because `_kernel_py.py` is read beside it, function by function.
 */

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030b0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEADER_BYTES = 34,
    VERSION = 1,
    PRIORITY_NORMAL = 2,
    PRIORITY_MAX = 4,
    INDEX_INTERVAL_BYTES = 4096,
    INDEX_ENTRY_BYTES = 16,
    KEY_BYTES_MAX = 0xFFFF,
    HEADERS_BYTES_MAX = 0xFFFF,
    NULL_VALUE = 0xFFFF, /* as the length of the value of a header: it has none */
    RELEASE_GIL_BYTES = 64 * 1024, /* below this, handing over the GIL costs more than the work */
};

#define VALUE_BYTES_MAX UINT32_MAX
#define OFFSET_MAX ((uint64_t)INT64_MAX)

enum {
    FLAG_COMPRESSED = 0x01,
    FLAG_HAS_HEADERS = 0x02,
    FLAG_TOMBSTONE = 0x04,
    FLAG_CONTROL = 0x08,
    FLAG_COMMIT = 0x10,
    FLAG_EMPTY_KEY = 0x40,
    FLAGS_KNOWN = 0x7F,
};

typedef enum {
    FAULT_NONE,
    FAULT_TRUNCATED,
    FAULT_MAGIC,
    FAULT_VERSION,
    FAULT_UNKNOWN_FLAGS,
    FAULT_FLAGS,
    FAULT_PRIORITY,
    FAULT_RESERVED,
    FAULT_LENGTH,
    FAULT_HEADERS,
    FAULT_CRC,
    FAULT_OFFSET,
} Fault;

/* ---- bytes ---- */

enum { LITTLE_ENDIAN_MACHINE = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ };

static inline uint16_t big_u16(uint16_t value)
{
    return LITTLE_ENDIAN_MACHINE ? __builtin_bswap16(value) : value;
}

static inline uint32_t big_u32(uint32_t value)
{
    return LITTLE_ENDIAN_MACHINE ? __builtin_bswap32(value) : value;
}

static inline uint64_t big_u64(uint64_t value)
{
    return LITTLE_ENDIAN_MACHINE ? __builtin_bswap64(value) : value;
}

static inline uint16_t load_u16(const uint8_t *from)
{
    uint16_t value;
    memcpy(&value, from, sizeof value);
    return big_u16(value);
}

static inline uint32_t load_u32(const uint8_t *from)
{
    uint32_t value;
    memcpy(&value, from, sizeof value);
    return big_u32(value);
}

static inline uint64_t load_u64(const uint8_t *from)
{
    uint64_t value;
    memcpy(&value, from, sizeof value);
    return big_u64(value);
}

static inline uint64_t load_u64_little(const uint8_t *from)
{
    return __builtin_bswap64(load_u64(from));
}

static inline void store_u16(uint8_t *to, uint16_t value)
{
    value = big_u16(value);
    memcpy(to, &value, sizeof value);
}

static inline void store_u32(uint8_t *to, uint32_t value)
{
    value = big_u32(value);
    memcpy(to, &value, sizeof value);
}

static inline void store_u64(uint8_t *to, uint64_t value)
{
    value = big_u64(value);
    memcpy(to, &value, sizeof value);
}

/* An exporter of nothing may give no address; arithmetic needs one. */
static const uint8_t *view_bytes(const Py_buffer *view)
{
    return view->buf ? view->buf : (const uint8_t *)"";
}

static PyThreadState *gil_release(Py_ssize_t bytes)
{
    return bytes > RELEASE_GIL_BYTES ? PyEval_SaveThread() : NULL;
}

static void gil_acquire(PyThreadState *released)
{
    if (released)
        PyEval_RestoreThread(released);
}

/* ---- CRC-32C ---- */

#define CRC_POLYNOMIAL 0x82F63B78u /* Castagnoli, reflected */

/* The hardware instruction takes three cycles but one can start in each, so inputs are cut into three streams, long
 * ones as far as possible and then short ones. A stream's crc is moved over the bytes that follow it by `crc_shift`. */
enum { CRC_LONG_STREAM = 512, CRC_SHORT_STREAM = 128 };
typedef uint32_t CrcShift[4][256];

static uint32_t crc_table[8][256];
static CrcShift crc_long_shift, crc_short_shift;
static bool crc_has_hardware;

static uint32_t crc_by_table(uint32_t state, const uint8_t *at, size_t bytes)
{
    for (; bytes >= 8; at += 8, bytes -= 8) {
        uint64_t word = load_u64_little(at) ^ state;
        state = 0;
        for (int i = 0; i < 8; i++)
            state ^= crc_table[7 - i][word >> 8 * i & 0xFF];
    }
    for (; bytes; at++, bytes--)
        state = state >> 8 ^ crc_table[0][(state ^ *at) & 0xFF];
    return state;
}

#if defined(__x86_64__)
#include <nmmintrin.h>
#define CRC_TARGET __attribute__((target("sse4.2")))
#define CRC_STEP_U64(state, word) ((uint32_t)_mm_crc32_u64(state, word))
#define CRC_STEP_U32(state, word) _mm_crc32_u32(state, word)
#define CRC_STEP_U8(state, byte) _mm_crc32_u8(state, byte)

static bool cpu_has_crc(void)
{
    return __builtin_cpu_supports("sse4.2");
}

#elif defined(__aarch64__) && defined(__linux__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#define CRC_TARGET __attribute__((target("+crc")))
#define CRC_STEP_U64(state, word) __crc32cd(state, word)
#define CRC_STEP_U32(state, word) __crc32cw(state, word)
#define CRC_STEP_U8(state, byte) __crc32cb(state, byte)

static bool cpu_has_crc(void)
{
    return getauxval(AT_HWCAP) & HWCAP_CRC32;
}
#endif

#ifdef CRC_TARGET
static inline uint32_t crc_shift(const CrcShift table, uint32_t state)
{
    return table[0][state & 0xFF] ^ table[1][state >> 8 & 0xFF] ^ table[2][state >> 16 & 0xFF] ^ table[3][state >> 24];
}

CRC_TARGET static inline uint32_t crc_of_three(uint32_t state, const uint8_t *at, size_t stream, const CrcShift table)
{
    uint32_t second = 0, third = 0;
    for (size_t i = 0; i < stream; i += 8) {
        state = CRC_STEP_U64(state, load_u64_little(at + i));
        second = CRC_STEP_U64(second, load_u64_little(at + stream + i));
        third = CRC_STEP_U64(third, load_u64_little(at + 2 * stream + i));
    }
    return crc_shift(table, crc_shift(table, state) ^ second) ^ third;
}

CRC_TARGET static uint32_t crc_by_hardware(uint32_t state, const uint8_t *at, size_t bytes)
{
    for (; bytes >= 3 * CRC_LONG_STREAM; at += 3 * CRC_LONG_STREAM, bytes -= 3 * CRC_LONG_STREAM)
        state = crc_of_three(state, at, CRC_LONG_STREAM, crc_long_shift);
    for (; bytes >= 3 * CRC_SHORT_STREAM; at += 3 * CRC_SHORT_STREAM, bytes -= 3 * CRC_SHORT_STREAM)
        state = crc_of_three(state, at, CRC_SHORT_STREAM, crc_short_shift);
    for (; bytes >= 8; at += 8, bytes -= 8)
        state = CRC_STEP_U64(state, load_u64_little(at));
    if (bytes >= 4) {
        state = CRC_STEP_U32(state, __builtin_bswap32(load_u32(at)));
        at += 4;
        bytes -= 4;
    }
    for (; bytes; at++, bytes--)
        state = CRC_STEP_U8(state, *at);
    return state;
}
#else
#define crc_by_hardware crc_by_table

static bool cpu_has_crc(void)
{
    return false;
}
#endif

static inline uint32_t crc_update(uint32_t state, const uint8_t *at, size_t bytes)
{
    return crc_has_hardware ? crc_by_hardware(state, at, bytes) : crc_by_table(state, at, bytes);
}

static uint32_t record_crc(const uint8_t *record, size_t bytes)
{
    return ~crc_update(crc_update(~0u, record, 4), record + 8, bytes - 8);
}

static void crc_setup(void)
{
    static const uint8_t zeros[CRC_LONG_STREAM];

    if (crc_table[0][1])
        return; /* another interpreter has been here */
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int bit = 0; bit < 8; bit++)
            state = state >> 1 ^ (state & 1 ? CRC_POLYNOMIAL : 0);
        crc_table[0][byte] = state;
    }
    for (int slice = 1; slice < 8; slice++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t state = crc_table[slice - 1][byte];
            crc_table[slice][byte] = state >> 8 ^ crc_table[0][state & 0xFF];
        }
    for (int slice = 0; slice < 4; slice++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            crc_long_shift[slice][byte] = crc_by_table(byte << 8 * slice, zeros, CRC_LONG_STREAM);
            crc_short_shift[slice][byte] = crc_by_table(byte << 8 * slice, zeros, CRC_SHORT_STREAM);
        }
    crc_has_hardware = cpu_has_crc();
}

/* ---- arguments ---- */

static int parse_int64(PyObject *given, void *result)
{
    long long value = PyLong_AsLongLong(given);
    if (value == -1 && PyErr_Occurred())
        return 0;
    *(int64_t *)result = value;
    return 1;
}

static int parse_natural(PyObject *given, void *result)
{
    int64_t value;
    if (!parse_int64(given, &value))
        return 0;
    if (value < 0) {
        PyErr_SetString(PyExc_ValueError, "must not be negative");
        return 0;
    }
    *(uint64_t *)result = (uint64_t)value;
    return 1;
}

static int parse_dict(PyObject *given, void *result)
{
    if (!PyDict_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "the table must be a dict");
        return 0;
    }
    *(PyObject **)result = given;
    return 1;
}

static int parse_dict_or_none(PyObject *given, void *result)
{
    return given == Py_None || parse_dict(given, result);
}

static PyObject *crc32c_with(PyObject *args, uint32_t (*update)(uint32_t, const uint8_t *, size_t))
{
    Py_buffer view;
    uint64_t crc;
    if (!PyArg_ParseTuple(args, "y*O&:crc32c", &view, parse_natural, &crc))
        return NULL;
    if (crc > UINT32_MAX) {
        PyBuffer_Release(&view);
        PyErr_SetString(PyExc_OverflowError, "crc must fit in 32 bits");
        return NULL;
    }

    /* Far quicker per byte than all else here; a busy thread may keep the GIL for longer than this takes. */
    PyThreadState *released = gil_release(view.len / 64);
    uint32_t result = ~update(~(uint32_t)crc, view_bytes(&view), (size_t)view.len);
    gil_acquire(released);

    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(result);
}

static PyObject *kernel_crc32c(PyObject *Py_UNUSED(module), PyObject *args)
{
    return crc32c_with(args, crc_update);
}

static PyObject *kernel_crc32c_table(PyObject *Py_UNUSED(module), PyObject *args)
{
    return crc32c_with(args, crc_by_table);
}

static PyObject *kernel_hardware_crc(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing))
{
    return PyBool_FromLong(crc_has_hardware);
}

/* ---- murmur2 ---- */

static inline uint32_t load_u32_little(const uint8_t *from)
{
    return __builtin_bswap32(load_u32(from));
}

static uint32_t murmur2(const uint8_t *at, size_t bytes)
{
    const uint32_t multiplier = 0x5bd1e995;
    uint32_t hash = 0x9747b28c ^ (uint32_t)bytes;
    for (; bytes >= 4; at += 4, bytes -= 4) {
        uint32_t word = load_u32_little(at) * multiplier;
        hash = hash * multiplier ^ (word ^ word >> 24) * multiplier;
    }
    uint32_t rest = 0;
    for (size_t i = bytes; i--;)
        rest = rest << 8 | at[i];
    if (bytes)
        hash = (hash ^ rest) * multiplier;
    hash = (hash ^ hash >> 13) * multiplier;
    return hash ^ hash >> 15;
}

static PyObject *kernel_murmur2(PyObject *Py_UNUSED(module), PyObject *key)
{
    if (!PyBytes_Check(key)) {
        PyErr_SetString(PyExc_TypeError, "the key must be bytes");
        return NULL;
    }
    return PyLong_FromUnsignedLong(murmur2((const uint8_t *)PyBytes_AsString(key), (size_t)PyBytes_Size(key)));
}

/* ---- one record ---- */

typedef struct {
    uint64_t offset;
    int64_t timestamp;
    uint64_t bytes; /* of the whole record */
    uint32_t crc;
    uint32_t value_bytes;
    uint16_t key_bytes;
    uint16_t headers_bytes;
    uint8_t flags;
    uint8_t priority;
} Header;

typedef struct {
    uint64_t flags_allowed;
    uint64_t value_bytes_max;
} Limits;

static const Limits NO_LIMITS = {FLAGS_KNOWN, VALUE_BYTES_MAX};

static inline const uint8_t *record_key(const uint8_t *record)
{
    return record + HEADER_BYTES;
}

static inline const uint8_t *record_value(const uint8_t *record, const Header *header)
{
    return record_key(record) + header->key_bytes;
}

static inline const uint8_t *record_headers(const uint8_t *record, const Header *header)
{
    return record_value(record, header) + header->value_bytes;
}

/* The flags say nothing unknown, nothing forbidden, and nothing that the lengths or other flags deny. */
static inline bool flags_hold(const Header *header, uint64_t allowed)
{
    unsigned flags = header->flags;
    bool has_headers = flags & FLAG_HAS_HEADERS;
    return !(flags & ~(allowed & FLAGS_KNOWN)) && has_headers == (header->headers_bytes > 0) &&
           !(flags & FLAG_TOMBSTONE && header->value_bytes) && (!(flags & FLAG_COMMIT) || flags & FLAG_CONTROL) &&
           !(flags & FLAG_EMPTY_KEY && header->key_bytes);
}

/* Whether there is a key. An empty one is a key, too, if the flag says so. */
static inline bool has_key(const Header *header)
{
    return header->key_bytes || header->flags & FLAG_EMPTY_KEY;
}

/* Reads the fixed header of the record at `at`, of which `left` bytes are there. After FAULT_NONE all of
 * `header->bytes` may be read. */
static inline Fault read_header(const uint8_t *at, size_t left, const Limits *limits, Header *header)
{
    if (left < HEADER_BYTES)
        return FAULT_TRUNCATED;
    uint16_t magic = load_u16(at);
    uint8_t version = at[2];
    uint8_t reserved = at[25];
    header->flags = at[3];
    header->crc = load_u32(at + 4);
    header->offset = load_u64(at + 8);
    header->timestamp = (int64_t)load_u64(at + 16);
    header->priority = at[24];
    header->key_bytes = load_u16(at + 26);
    header->value_bytes = load_u32(at + 28);
    header->headers_bytes = load_u16(at + 32);
    header->bytes = (uint64_t)HEADER_BYTES + header->key_bytes + header->value_bytes + header->headers_bytes;
    atomic_signal_fence(memory_order_seq_cst); /* from here on the compiler may not read them again */

    if (magic != ('G' << 8 | 'Q'))
        return FAULT_MAGIC;
    if (version != VERSION)
        return FAULT_VERSION;
    if (!flags_hold(header, limits->flags_allowed))
        return header->flags & ~FLAGS_KNOWN ? FAULT_UNKNOWN_FLAGS : FAULT_FLAGS;
    if (header->priority > PRIORITY_MAX)
        return FAULT_PRIORITY;
    if (reserved)
        return FAULT_RESERVED;
    if (header->value_bytes > limits->value_bytes_max)
        return FAULT_LENGTH;
    return header->bytes > left ? FAULT_TRUNCATED : FAULT_NONE;
}

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
    unsigned left;
} HeaderCursor;

typedef struct {
    const uint8_t *name;
    const uint8_t *value;
    uint16_t name_bytes;
    uint16_t value_bytes;
    bool is_null; /* the value, which has 0 bytes then */
} NamedValue;

/* A length of two bytes, or -1 when it would leave the headers. */
static inline int next_length(HeaderCursor *cursor)
{
    if (cursor->end - cursor->at < 2)
        return -1;
    uint16_t bytes = load_u16(cursor->at);
    atomic_signal_fence(memory_order_seq_cst);
    cursor->at += 2;
    return bytes;
}

/* That many bytes, or NULL when they would leave the headers. */
static inline const uint8_t *next_bytes(HeaderCursor *cursor, uint16_t bytes)
{
    const uint8_t *found = cursor->at;
    if (cursor->end - found < bytes)
        return NULL;
    cursor->at = found + bytes;
    return found;
}

static inline HeaderCursor open_headers(const uint8_t *record, const Header *header)
{
    const uint8_t *headers = record_headers(record, header);
    HeaderCursor cursor = {headers, headers + header->headers_bytes, 0};
    if (header->headers_bytes >= 2) {
        cursor.left = load_u16(headers);
        cursor.at += 2;
    }
    return cursor;
}

/* False after the last header, or at one that would leave the headers. */
static inline bool next_header(HeaderCursor *cursor, NamedValue *found)
{
    if (!cursor->left)
        return false;
    int bytes = next_length(cursor);
    if (bytes < 0)
        return false;
    found->name_bytes = (uint16_t)bytes;
    found->name = next_bytes(cursor, found->name_bytes);
    if (!found->name)
        return false;
    bytes = next_length(cursor);
    if (bytes < 0)
        return false;
    found->is_null = bytes == NULL_VALUE;
    found->value_bytes = found->is_null ? 0 : (uint16_t)bytes;
    found->value = next_bytes(cursor, found->value_bytes);
    if (!found->value)
        return false;
    cursor->left--;
    return true;
}

static bool headers_hold(const uint8_t *record, const Header *header)
{
    HeaderCursor cursor = open_headers(record, header);
    NamedValue found;
    if (!cursor.left)
        return false;
    while (next_header(&cursor, &found))
        continue;
    return !cursor.left && cursor.at == cursor.end;
}

static inline Fault read_record(const uint8_t *at, size_t left, const Limits *limits, Header *header)
{
    Fault fault = read_header(at, left, limits, header);
    if (!fault && header->headers_bytes && !headers_hold(at, header))
        return FAULT_HEADERS;
    return fault;
}

/* As above, and the crc if it is to be verified, and the offset. */
static inline Fault read_stored(const uint8_t *at, size_t left, bool verify, Header *header)
{
    Fault fault = read_record(at, left, &NO_LIMITS, header);
    if (fault)
        return fault;
    if (verify && record_crc(at, (size_t)header->bytes) != header->crc)
        return FAULT_CRC;
    return header->offset > OFFSET_MAX ? FAULT_OFFSET : FAULT_NONE;
}

/* Decimal ASCII, at most 19 digits, maybe after a minus. */
static bool parse_decimal(const uint8_t *text, size_t bytes, int64_t *result)
{
    bool negative = bytes && text[0] == '-';
    size_t at = negative;
    if (bytes == at || bytes - at > 19)
        return false;
    uint64_t value = 0; /* 19 digits stay below 2**64 */
    for (; at < bytes; at++) {
        unsigned digit = (unsigned)text[at] - '0';
        if (digit > 9)
            return false;
        value = value * 10 + digit;
    }
    if (value > OFFSET_MAX + negative)
        return false;
    *result = negative ? (int64_t)(0 - value) : (int64_t)value;
    return true;
}

/* The times in the headers gq-deliver-at and gq-expires-at, and the group in gq-for-group; the last one of each if there
 * are several. */
typedef struct {
    bool is_delayed;
    bool expires;
    int64_t deliver_at;
    int64_t expires_at;
    const uint8_t *group;
    size_t group_bytes;
} Times;

static Times find_times(const uint8_t *record, const Header *header)
{
    static const char deliver_at[] = "gq-deliver-at", expires_at[] = "gq-expires-at", for_group[] = "gq-for-group";
    enum { NAME_BYTES = sizeof deliver_at - 1, FOR_GROUP_BYTES = sizeof for_group - 1 };
    _Static_assert(sizeof expires_at == sizeof deliver_at, "one length is compared for both");
    HeaderCursor cursor = open_headers(record, header);
    NamedValue found;
    Times times = {0};
    while (next_header(&cursor, &found)) {
        if (found.name_bytes == FOR_GROUP_BYTES && !memcmp(found.name, for_group, FOR_GROUP_BYTES)) {
            times.group = found.value;
            times.group_bytes = found.value_bytes;
        }
        if (found.name_bytes != NAME_BYTES)
            continue;
        if (!memcmp(found.name, deliver_at, NAME_BYTES))
            times.is_delayed = parse_decimal(found.value, found.value_bytes, &times.deliver_at);
        else if (!memcmp(found.name, expires_at, NAME_BYTES))
            times.expires = parse_decimal(found.value, found.value_bytes, &times.expires_at);
    }
    return times;
}

/* ---- stamp and scan ---- */

typedef struct {
    uint64_t count;
    size_t start;
    size_t end;
    int64_t first_offset;
    int64_t last_offset;
    int64_t first_timestamp;
    int64_t last_timestamp;
    unsigned flags;
    unsigned later_flags; /* of all records but the first */
    unsigned priorities;
    uint64_t position; /* of the buffer in its file */
    uint64_t next_index_at;
    size_t entry_count;
    uint8_t *offset_entries;
    uint8_t *time_entries;
    uint8_t *positions;
    Fault fault;
    size_t fault_position;
} Summary;

/* Room for all that the buffer can yield, so that nothing is allocated while the GIL is released: index entries
 * stand at least one interval apart, records at least one header. */
static bool summary_open(Summary *summary, size_t bytes, bool positions)
{
    summary->first_offset = summary->last_offset = -1;
    summary->first_timestamp = summary->last_timestamp = -1;
    if (summary->next_index_at < summary->position + bytes) {
        size_t room = (bytes / INDEX_INTERVAL_BYTES + 1) * INDEX_ENTRY_BYTES;
        summary->offset_entries = PyMem_Malloc(room);
        summary->time_entries = PyMem_Malloc(room);
        if (!summary->offset_entries || !summary->time_entries)
            return false;
    }
    if (positions) {
        summary->positions = PyMem_Malloc((bytes / HEADER_BYTES + 1) * sizeof(uint32_t));
        if (!summary->positions)
            return false;
    }
    return true;
}

static void summary_close(Summary *summary)
{
    PyMem_Free(summary->offset_entries);
    PyMem_Free(summary->time_entries);
    PyMem_Free(summary->positions);
}

static inline void summary_index(Summary *summary, size_t at, uint64_t offset, int64_t timestamp)
{
    uint64_t position = summary->position + at;
    if (position < summary->next_index_at)
        return;
    size_t entry = summary->entry_count++ * INDEX_ENTRY_BYTES;
    store_u64(summary->offset_entries + entry, offset);
    store_u64(summary->offset_entries + entry + 8, position);
    store_u64(summary->time_entries + entry, (uint64_t)timestamp);
    store_u64(summary->time_entries + entry + 8, offset);
    summary->next_index_at = position + INDEX_INTERVAL_BYTES;
}

static inline void summary_count(Summary *summary, size_t at, const Header *header)
{
    if (!summary->count) {
        summary->start = at;
        summary->first_offset = (int64_t)header->offset;
        summary->first_timestamp = header->timestamp;
    } else {
        summary->later_flags |= header->flags;
    }
    if (summary->positions) {
        uint32_t position = (uint32_t)at;
        memcpy(summary->positions + summary->count * sizeof position, &position, sizeof position);
    }
    summary->count++;
    summary->end = at + (size_t)header->bytes;
    summary->last_offset = (int64_t)header->offset;
    summary->last_timestamp = header->timestamp;
    summary->flags |= header->flags;
    summary->priorities |= 1u << header->priority;
}

static void summary_stop(Summary *summary, Fault fault, size_t at)
{
    summary->fault = fault;
    summary->fault_position = at;
    if (!summary->count)
        summary->start = summary->end = at;
}

static PyObject *summary_tuple(const Summary *summary)
{
    Py_ssize_t entries_bytes = (Py_ssize_t)(summary->entry_count * INDEX_ENTRY_BYTES);
    Py_ssize_t positions_bytes = summary->positions ? (Py_ssize_t)(summary->count * sizeof(uint32_t)) : 0;
    const void *nothing = "";
    return Py_BuildValue("(KnnLLLLIIy#y#Kiny#I)", (unsigned long long)summary->count, (Py_ssize_t)summary->start,
                         (Py_ssize_t)summary->end, (long long)summary->first_offset, (long long)summary->last_offset,
                         (long long)summary->first_timestamp, (long long)summary->last_timestamp, summary->flags,
                         summary->priorities, summary->offset_entries ? summary->offset_entries : nothing,
                         entries_bytes, summary->time_entries ? summary->time_entries : nothing, entries_bytes,
                         (unsigned long long)summary->next_index_at, (int)summary->fault,
                         (Py_ssize_t)summary->fault_position, summary->positions ? summary->positions : nothing,
                         positions_bytes, summary->later_flags);
}

static void stamp_records(uint8_t *buffer, size_t bytes, uint64_t offset, int64_t timestamp, const Limits *limits,
                          Summary *summary)
{
    size_t at = 0;
    Fault fault = FAULT_NONE;
    for (; at < bytes; offset++) {
        uint8_t *record = buffer + at;
        Header header;
        fault = read_record(record, bytes - at, limits, &header);
        if (!fault && offset > OFFSET_MAX)
            fault = FAULT_OFFSET;
        if (fault)
            break;
        store_u64(record + 8, offset);
        store_u64(record + 16, (uint64_t)timestamp);
        store_u32(record + 4, record_crc(record, (size_t)header.bytes));
        header.offset = offset;
        header.timestamp = timestamp;
        summary_index(summary, at, offset, timestamp);
        summary_count(summary, at, &header);
        at += (size_t)header.bytes;
    }
    summary_stop(summary, fault, at);
}

static PyObject *kernel_stamp(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer view;
    uint64_t first_offset;
    int64_t timestamp;
    Limits limits;
    Summary summary = {0};
    if (!PyArg_ParseTuple(args, "w*O&O&O&O&O&O&:stamp", &view, parse_natural, &first_offset, parse_int64, &timestamp,
                          parse_natural, &limits.flags_allowed, parse_natural, &limits.value_bytes_max, parse_natural,
                          &summary.position, parse_natural, &summary.next_index_at))
        return NULL;

    PyObject *result = NULL;
    if (!summary_open(&summary, (size_t)view.len, false)) {
        PyErr_NoMemory();
    } else {
        PyThreadState *released = gil_release(view.len);
        stamp_records((uint8_t *)view_bytes(&view), (size_t)view.len, first_offset, timestamp, &limits, &summary);
        gil_acquire(released);
        result = summary_tuple(&summary);
    }
    summary_close(&summary);
    PyBuffer_Release(&view);
    return result;
}

typedef struct {
    uint64_t min_offset;
    int64_t from_offset;
    int64_t to_offset;
    int dense;
    int positions;
} ScanRequest;

static void scan_records(const uint8_t *buffer, size_t bytes, const ScanRequest *request, Summary *summary)
{
    uint64_t expected = request->min_offset;
    size_t at = 0;
    Fault fault = FAULT_NONE;
    while (at < bytes) {
        Header header;
        fault = read_stored(buffer + at, bytes - at, true, &header);
        if (!fault && (request->dense ? header.offset != expected : header.offset < expected))
            fault = FAULT_OFFSET;
        if (fault || (int64_t)header.offset >= request->to_offset)
            break;
        summary_index(summary, at, header.offset, header.timestamp);
        if ((int64_t)header.offset >= request->from_offset)
            summary_count(summary, at, &header);
        expected = header.offset + 1;
        at += (size_t)header.bytes;
    }
    summary_stop(summary, fault, at);
}

static PyObject *kernel_scan(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer view;
    ScanRequest request;
    Summary summary = {0};
    if (!PyArg_ParseTuple(args, "y*O&pO&O&O&O&p:scan", &view, parse_natural, &request.min_offset, &request.dense,
                          parse_int64, &request.from_offset, parse_int64, &request.to_offset, parse_natural,
                          &summary.position, parse_natural, &summary.next_index_at, &request.positions))
        return NULL;

    PyObject *result = NULL;
    if (request.positions && (uint64_t)view.len > UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "positions need a buffer below 4 GiB");
    } else if (!summary_open(&summary, (size_t)view.len, request.positions)) {
        PyErr_NoMemory();
    } else {
        PyThreadState *released = gil_release(view.len);
        scan_records(view_bytes(&view), (size_t)view.len, &request, &summary);
        gil_acquire(released);
        result = summary_tuple(&summary);
    }
    summary_close(&summary);
    PyBuffer_Release(&view);
    return result;
}

/* ---- resync ---- */

/* Bytes that look like headers may ask for any number of checksums over the same bytes; the budget ends that. */
enum { RESYNC_BUDGET_FACTOR = 16, RESYNC_BUDGET_BYTES = 1024 * 1024 };

typedef struct {
    const uint8_t *buffer;
    size_t bytes;
    int64_t max_offset;
    uint64_t budget;
    bool exhausted;
} Search;

/* FAULT_NONE when a whole, valid record with an offset in [min_offset, max_offset) stands at `at`. */
static Fault search_probe(Search *search, size_t at, int64_t min_offset, Header *header)
{
    const uint8_t *record = search->buffer + at;
    Fault fault = read_header(record, search->bytes - at, &NO_LIMITS, header);
    if (fault)
        return fault;
    if (header->offset > OFFSET_MAX || (int64_t)header->offset < min_offset ||
        (int64_t)header->offset >= search->max_offset)
        return FAULT_OFFSET;
    if (header->bytes > search->budget) {
        search->exhausted = true;
        return FAULT_CRC;
    }
    search->budget -= header->bytes;
    if (header->headers_bytes && !headers_hold(record, header))
        return FAULT_HEADERS;
    return record_crc(record, (size_t)header->bytes) == header->crc ? FAULT_NONE : FAULT_CRC;
}

/* Where the bytes at `at` stop being records with rising offsets; the end, too, if the begin of one is last. */
static size_t search_follow(Search *search, size_t at, int64_t min_offset)
{
    static const uint8_t opening[] = {'G', 'Q', VERSION};
    Header header;
    Fault fault = FAULT_NONE;
    while (at < search->bytes && !(fault = search_probe(search, at, min_offset, &header))) {
        at += (size_t)header.bytes;
        min_offset = (int64_t)header.offset + 1;
    }
    size_t left = search->bytes - at;
    size_t compared = left < sizeof opening ? left : sizeof opening;
    bool torn = fault == FAULT_TRUNCATED && !memcmp(search->buffer + at, opening, compared);
    return torn ? search->bytes : at;
}

static size_t search_magic(const Search *search, size_t at)
{
    while (at < search->bytes) {
        const uint8_t *found = memchr(search->buffer + at, 'G', search->bytes - at);
        if (!found)
            break;
        at = (size_t)(found - search->buffer);
        if (search->bytes - at >= 2 && found[1] == 'Q')
            return at;
        at++;
    }
    return search->bytes;
}

/* The first valid record from which valid records lead to the end, or the end; `offset` becomes its offset. */
static size_t search_proven(Search *search, size_t at, int64_t min_offset, int64_t *offset)
{
    while ((at = search_magic(search, at)) < search->bytes && !search->exhausted) {
        Header header;
        if (search_probe(search, at, min_offset, &header)) {
            at++;
            continue;
        }
        size_t stopped = search_follow(search, at + (size_t)header.bytes, (int64_t)header.offset + 1);
        if (stopped == search->bytes) {
            *offset = (int64_t)header.offset;
            return at;
        }
        at = stopped;
    }
    return search->bytes;
}

/* The first valid record that ends at or before `end`, or `end`. */
static size_t search_valid(Search *search, size_t at, size_t end, int64_t min_offset)
{
    for (; (at = search_magic(search, at)) < end && !search->exhausted; at++) {
        Header header;
        if (!search_probe(search, at, min_offset, &header) && header.bytes <= end - at)
            return at;
    }
    return end;
}

/* What leads to the end is proven, and bounds the offsets that a record between the damage and it can have: so
 * neither does more damage hide a record, nor does a record inside a value pass for one of the log. */
static Py_ssize_t search_record(Search *search, uint64_t damage, int64_t min_offset)
{
    if (damage >= search->bytes)
        return -1;
    size_t start = (size_t)damage + 1;
    size_t proven = search_proven(search, start, min_offset, &search->max_offset);
    size_t found = search_valid(search, start, proven, min_offset);
    return search->exhausted || found == search->bytes ? -1 : (Py_ssize_t)found;
}

static PyObject *kernel_resync(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer view;
    uint64_t start;
    int64_t min_offset, max_offset;
    if (!PyArg_ParseTuple(args, "y*O&O&O&:resync", &view, parse_natural, &start, parse_int64, &min_offset, parse_int64,
                          &max_offset))
        return NULL;

    Search search = {
        .buffer = view_bytes(&view),
        .bytes = (size_t)view.len,
        .max_offset = max_offset,
        .budget = (uint64_t)view.len * RESYNC_BUDGET_FACTOR + RESYNC_BUDGET_BYTES,
    };
    PyThreadState *released = gil_release(view.len);
    Py_ssize_t found = search_record(&search, start, min_offset);
    gil_acquire(released);

    PyBuffer_Release(&view);
    return PyLong_FromSsize_t(found);
}

/* ---- decode ---- */

/* A record as a Python object. It takes no part in garbage collection, so that a million of them cost the collector
 * nothing: its origin must not lead back to it. Nor may its origin be a record: a chain of them would be freed by as
 * many nested calls, and the stable ABI has no trashcan that would keep these from overflowing the stack. */
typedef struct {
    PyObject_HEAD
    PyObject *origin;
    PyObject *key;
    PyObject *value;
    PyObject *encoded_headers;
    long long offset;
    long long timestamp_ns;
    unsigned char priority_code;
    unsigned char flags;
} RecordObject;

typedef struct {
    PyTypeObject *record_type;
} ModuleState;

static bool is_bytes_or_none(PyObject *object)
{
    return object == Py_None || PyBytes_Check(object);
}

static bool refuse_record_as_origin(PyObject *origin, PyTypeObject *record_type)
{
    if (!PyObject_TypeCheck(origin, record_type))
        return false;
    PyErr_SetString(PyExc_TypeError, "origin must not be a record");
    return true;
}

/* Record itself: of all that a subclass inherits from, the last before object. */
static PyTypeObject *record_type_below(PyTypeObject *type)
{
    PyTypeObject *base = (PyTypeObject *)PyType_GetSlot(type, Py_tp_base);
    while (base != &PyBaseObject_Type) {
        type = base;
        base = (PyTypeObject *)PyType_GetSlot(type, Py_tp_base);
    }
    return type;
}

static PyObject *record_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"origin", "offset", "timestamp_ns",    "priority_code", "flags",
                            "key",    "value",  "encoded_headers", NULL};
    PyObject *origin, *key, *value, *encoded_headers;
    long long offset, timestamp_ns;
    unsigned char priority_code, flags;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OLLbbOSO:Record", names, &origin, &offset, &timestamp_ns,
                                     &priority_code, &flags, &key, &value, &encoded_headers))
        return NULL;
    if (!is_bytes_or_none(key) || !is_bytes_or_none(encoded_headers)) {
        PyErr_SetString(PyExc_TypeError, "key and encoded_headers must be bytes or None");
        return NULL;
    }
    if (refuse_record_as_origin(origin, record_type_below(type)))
        return NULL;

    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    RecordObject *record = (RecordObject *)alloc(type, 0);
    if (!record)
        return NULL;
    record->origin = Py_NewRef(origin);
    record->key = Py_NewRef(key);
    record->value = Py_NewRef(value);
    record->encoded_headers = Py_NewRef(encoded_headers);
    record->offset = offset;
    record->timestamp_ns = timestamp_ns;
    record->priority_code = priority_code;
    record->flags = flags;
    return (PyObject *)record;
}

static void record_dealloc(PyObject *self)
{
    RecordObject *record = (RecordObject *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(record->origin);
    Py_XDECREF(record->key);
    Py_XDECREF(record->value);
    Py_XDECREF(record->encoded_headers);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyMemberDef record_members[] = {
    {"origin", T_OBJECT_EX, offsetof(RecordObject, origin), READONLY, NULL},
    {"offset", T_LONGLONG, offsetof(RecordObject, offset), READONLY, NULL},
    {"timestamp_ns", T_LONGLONG, offsetof(RecordObject, timestamp_ns), READONLY, NULL},
    {"priority_code", T_UBYTE, offsetof(RecordObject, priority_code), READONLY, NULL},
    {"flags", T_UBYTE, offsetof(RecordObject, flags), READONLY, NULL},
    {"key", T_OBJECT_EX, offsetof(RecordObject, key), READONLY, NULL},
    {"value", T_OBJECT_EX, offsetof(RecordObject, value), READONLY, NULL},
    {"encoded_headers", T_OBJECT_EX, offsetof(RecordObject, encoded_headers), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot record_slots[] = {
    {Py_tp_doc, "One record of a batch. It takes no part in garbage collection: its origin must not lead back to it."},
    {Py_tp_new, record_new},
    {Py_tp_dealloc, record_dealloc},
    {Py_tp_members, record_members},
    {0, NULL},
};

static PyType_Spec record_spec = {
    .name = "goqueue.record._kernel.Record",
    .basicsize = sizeof(RecordObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = record_slots,
};

static bool same_layout(PyTypeObject *type, PyTypeObject *base, const char *attribute)
{
    PyObject *mine = PyObject_GetAttrString((PyObject *)type, attribute);
    PyObject *theirs = PyObject_GetAttrString((PyObject *)base, attribute);
    bool same = mine && theirs && PyObject_RichCompareBool(mine, theirs, Py_EQ) == 1;
    Py_XDECREF(mine);
    Py_XDECREF(theirs);
    return same;
}

/* Python makes all instances of its own classes known to the collector. Those that hold no more than a Record does
 * are taken out again. */
static bool is_untrackable(PyTypeObject *type, PyTypeObject *base)
{
    return PyType_HasFeature(type, Py_TPFLAGS_HAVE_GC) && same_layout(type, base, "__basicsize__") &&
           same_layout(type, base, "__dictoffset__");
}

static PyObject *bytes_if(bool present, const uint8_t *from, size_t bytes)
{
    return present ? PyBytes_FromStringAndSize((const char *)from, (Py_ssize_t)bytes) : Py_NewRef(Py_None);
}

typedef struct {
    PyTypeObject *type;
    allocfunc alloc;
    bool untrack;
    PyObject *origin;
} Decoder;

/* Goes past __new__ and __init__ of the type: what they would check has been checked. */
static PyObject *decode_record(const Decoder *decoder, const uint8_t *at, const Header *header)
{
    RecordObject *record = (RecordObject *)decoder->alloc(decoder->type, 0);
    if (!record)
        return NULL;
    if (decoder->untrack)
        PyObject_GC_UnTrack(record);
    record->origin = Py_NewRef(decoder->origin);
    record->offset = (long long)header->offset;
    record->timestamp_ns = header->timestamp;
    record->priority_code = header->priority;
    record->flags = header->flags;
    record->key = bytes_if(has_key(header), record_key(at), header->key_bytes);
    record->value = PyBytes_FromStringAndSize((const char *)record_value(at, header), (Py_ssize_t)header->value_bytes);
    record->encoded_headers = bytes_if(header->headers_bytes, record_headers(at, header), header->headers_bytes);
    if (!record->key || !record->value || !record->encoded_headers) {
        Py_DECREF(record);
        return NULL;
    }
    return (PyObject *)record;
}

/* Appends to the list; false with an exception set. */
static bool decode_records(const Decoder *decoder, const uint8_t *buffer, size_t bytes, bool verify, PyObject *list,
                           Fault *fault, size_t *position)
{
    size_t at = 0;
    *fault = FAULT_NONE;
    while (at < bytes) {
        Header header;
        *fault = read_stored(buffer + at, bytes - at, verify, &header);
        if (*fault)
            break;
        PyObject *record = decode_record(decoder, buffer + at, &header);
        if (!record)
            return false;
        int failed = PyList_Append(list, record);
        Py_DECREF(record);
        if (failed)
            return false;
        at += (size_t)header.bytes;
    }
    *position = at;
    return true;
}

static PyObject *decode_buffer(const Decoder *decoder, const Py_buffer *view, bool verify)
{
    Fault fault;
    size_t position;
    PyObject *list = PyList_New(0);
    if (!list || !decode_records(decoder, view_bytes(view), (size_t)view->len, verify, list, &fault, &position)) {
        Py_XDECREF(list);
        return NULL;
    }
    return Py_BuildValue("(inN)", (int)fault, (Py_ssize_t)position, list);
}

static PyObject *kernel_decode(PyObject *module, PyObject *args)
{
    PyTypeObject *base = ((ModuleState *)PyModule_GetState(module))->record_type;
    Py_buffer view;
    PyObject *origin, *given_type;
    int verify;
    if (!PyArg_ParseTuple(args, "y*OOp:decode", &view, &origin, &given_type, &verify))
        return NULL;

    PyObject *result = NULL;
    PyTypeObject *type = (PyTypeObject *)given_type;
    if (!PyType_Check(given_type) || !PyType_IsSubtype(type, base)) {
        PyErr_SetString(PyExc_TypeError, "record_type must be a subclass of Record");
    } else if (!refuse_record_as_origin(origin, base)) {
        allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
        Decoder decoder = {type, alloc, is_untrackable(type, base), origin};
        result = PyErr_Occurred() ? NULL : decode_buffer(&decoder, &view, verify);
    }
    PyBuffer_Release(&view);
    return result;
}

/* ---- encode ---- */

static void refuse(Py_ssize_t index, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    PyObject *reason = PyUnicode_FromFormatV(format, values);
    va_end(values);
    PyObject *args = reason ? Py_BuildValue("(nN)", index, reason) : NULL;
    if (args)
        PyErr_SetObject(PyExc_ValueError, args);
    Py_XDECREF(args);
}

static void refuse_type(Py_ssize_t index, const char *field, const char *wanted, PyObject *given)
{
    PyObject *name = PyType_GetName(Py_TYPE(given));
    if (name)
        refuse(index, "%s must be %s, got %U", field, wanted, name);
    Py_XDECREF(name);
}

static void refuse_size(Py_ssize_t index, const char *field, uint64_t bytes, uint64_t limit)
{
    PyObject *args = Py_BuildValue("(nsKK)", index, field, (unsigned long long)bytes, (unsigned long long)limit);
    if (args)
        PyErr_SetObject(PyExc_OverflowError, args);
    Py_XDECREF(args);
}

/* What the caller gave, as a tuple that no other thread can change while we look at it. */
static PyObject *snapshot(PyObject *given, const char *name, Py_ssize_t count)
{
    PyObject *items = PySequence_Tuple(given);
    if (items && PyTuple_Size(items) != count) {
        refuse(0, "%s: %zd given for %zd values", name, PyTuple_Size(items), count);
        Py_CLEAR(items);
    }
    return items;
}

/* A number for each message, or one for all. */
typedef struct {
    const char *plural;
    const char *singular;
    const char *range_rule;
    int64_t min;
    int64_t max;
    PyObject *items; /* a tuple, or NULL: `all` holds for all */
    int64_t all;
} Numbers;

static bool number_parse(const Numbers *numbers, PyObject *given, Py_ssize_t index, int64_t *result)
{
    if (!PyLong_Check(given)) {
        refuse_type(index, numbers->singular, "an int", given);
        return false;
    }
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(given, &overflow);
    if (overflow || value < numbers->min || value > numbers->max) {
        refuse(index, "%s", numbers->range_rule);
        return false;
    }
    *result = value;
    return true;
}

static bool numbers_open(Numbers *numbers, PyObject *given, Py_ssize_t count)
{
    if (PyLong_Check(given))
        return number_parse(numbers, given, 0, &numbers->all);
    numbers->items = snapshot(given, numbers->plural, count);
    return numbers->items;
}

static inline bool number_at(const Numbers *numbers, Py_ssize_t index, int64_t *result)
{
    if (numbers->items)
        return number_parse(numbers, PyTuple_GetItem(numbers->items, index), index, result);
    *result = numbers->all;
    return true;
}

/* Bytes lent by an object: directly when it is bytes, else through the buffer protocol. */
typedef struct {
    const uint8_t *data;
    size_t bytes;
    bool exported;
    Py_buffer view;
} Loan;

static bool loan_open(Loan *loan, PyObject *object, Py_ssize_t index, const char *field)
{
    loan->data = (const uint8_t *)"";
    loan->bytes = 0;
    loan->exported = false;
    if (object == Py_None)
        return true;
    if (PyBytes_CheckExact(object)) {
        loan->data = (const uint8_t *)PyBytes_AsString(object);
        loan->bytes = (size_t)PyBytes_Size(object);
        return true;
    }
    if (!PyObject_CheckBuffer(object)) {
        refuse_type(index, field, "bytes", object);
        return false;
    }
    if (PyObject_GetBuffer(object, &loan->view, PyBUF_SIMPLE)) {
        if (PyErr_ExceptionMatches(PyExc_BufferError)) {
            PyErr_Clear();
            refuse(index, "%s must be contiguous", field);
        }
        return false;
    }
    loan->exported = true;
    loan->data = view_bytes(&loan->view);
    loan->bytes = (size_t)loan->view.len;
    return true;
}

static inline void loan_close(Loan *loan)
{
    if (loan->exported)
        PyBuffer_Release(&loan->view);
}

/* A bytearray that grows at its end. Positions in it stay; addresses do not. */
typedef struct {
    PyObject *array;
    uint8_t *data;
    size_t bytes;
    size_t room;
} Output;

static bool output_grow(Output *output, size_t more)
{
    if (more > (size_t)PY_SSIZE_T_MAX / 2 - output->bytes) {
        PyErr_NoMemory();
        return false;
    }
    size_t room = output->bytes + more + output->room;
    if (PyByteArray_Resize(output->array, (Py_ssize_t)room))
        return false;
    output->data = (uint8_t *)PyByteArray_AsString(output->array);
    output->room = room;
    return true;
}

static inline bool output_reserve(Output *output, size_t more)
{
    return more <= output->room - output->bytes || output_grow(output, more);
}

static inline void output_append(Output *output, const uint8_t *from, size_t bytes)
{
    memcpy(output->data + output->bytes, from, bytes);
    output->bytes += bytes;
}

static void output_append_u16(Output *output, uint16_t value)
{
    store_u16(output->data + output->bytes, value);
    output->bytes += 2;
}

/* Text as UTF-8, with surrogate escapes turned back into the bytes they stand for. */
typedef struct {
    const char *data;
    Py_ssize_t bytes;
    PyObject *owner;
} Text;

static bool text_open(Text *text, PyObject *object, Py_ssize_t index)
{
    text->owner = NULL;
    if (PyBytes_Check(object))
        return !PyBytes_AsStringAndSize(object, (char **)&text->data, &text->bytes);
    text->data = PyUnicode_AsUTF8AndSize(object, &text->bytes);
    if (text->data)
        return true;
    if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
        return false;
    PyErr_Clear();
    text->owner = PyUnicode_AsEncodedString(object, "utf-8", "surrogateescape");
    if (text->owner)
        return !PyBytes_AsStringAndSize(text->owner, (char **)&text->data, &text->bytes);
    if (PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
        PyErr_Clear();
        refuse(index, "headers must be text that UTF-8 can hold");
    }
    return false;
}

/* Without a `value->data` the value is null. */
static bool append_named_value(Output *output, const Text *name, const Text *value, uint64_t *total)
{
    size_t bytes = 4 + (size_t)name->bytes + (size_t)value->bytes;
    *total += bytes;
    if (*total > HEADERS_BYTES_MAX)
        return true; /* goes on counting, for the error to come */
    if (!output_reserve(output, bytes))
        return false;
    output_append_u16(output, (uint16_t)name->bytes);
    output_append(output, (const uint8_t *)name->data, (size_t)name->bytes);
    output_append_u16(output, (uint16_t)(value->data ? value->bytes : NULL_VALUE));
    if (value->data)
        output_append(output, (const uint8_t *)value->data, (size_t)value->bytes);
    return true;
}

static bool append_header(Output *output, PyObject *name, PyObject *value, Py_ssize_t index, uint64_t *total)
{
    Text name_text, value_text = {NULL, 0, NULL};
    if (!PyUnicode_Check(name)) {
        refuse_type(index, "header name", "str", name);
        return false;
    }
    if (value != Py_None && !PyUnicode_Check(value) && !PyBytes_Check(value)) {
        refuse_type(index, "header value", "str, bytes or None", value);
        return false;
    }
    if (!text_open(&name_text, name, index))
        return false;
    bool done = value == Py_None || text_open(&value_text, value, index);
    if (done) {
        done = append_named_value(output, &name_text, &value_text, total);
        Py_XDECREF(value_text.owner);
    }
    Py_XDECREF(name_text.owner);
    return done;
}

/* The number of headers, or -1 with an exception set. An error handler of the codec may be Python code, which may change
 * the dict or the list, so references are held, and what is counted is what was appended. */
static Py_ssize_t append_named(Output *output, PyObject *headers, Py_ssize_t index, uint64_t *total)
{
    Py_ssize_t cursor = 0, count = 0;
    PyObject *name, *value;
    for (; PyDict_Next(headers, &cursor, &name, &value); count++) {
        Py_INCREF(name);
        Py_INCREF(value);
        bool done = append_header(output, name, value, index, total);
        Py_DECREF(name);
        Py_DECREF(value);
        if (!done)
            return -1;
    }
    return count;
}

static Py_ssize_t append_pairs(Output *output, PyObject *headers, Py_ssize_t index, uint64_t *total)
{
    Py_ssize_t count = 0;
    for (; count < PyList_Size(headers); count++) {
        PyObject *pair = Py_NewRef(PyList_GetItem(headers, count));
        bool done = PyTuple_Check(pair) && PyTuple_Size(pair) == 2;
        if (!done)
            refuse(index, "headers must be a dict or a list of pairs");
        else
            done = append_header(output, PyTuple_GetItem(pair, 0), PyTuple_GetItem(pair, 1), index, total);
        Py_DECREF(pair);
        if (!done)
            return -1;
    }
    return count;
}

static bool append_headers(Output *output, PyObject *headers, Py_ssize_t index, uint16_t *bytes)
{
    *bytes = 0;
    if (headers == Py_None)
        return true;
    bool is_list = PyList_Check(headers);
    if (!is_list && !PyDict_Check(headers)) {
        refuse(index, "headers must be a dict or a list of pairs");
        return false;
    }
    if (!(is_list ? PyList_Size(headers) : PyDict_Size(headers)))
        return true;
    if (!output_reserve(output, 2))
        return false;
    size_t count_at = output->bytes;
    uint64_t total = 2;
    output->bytes += 2;
    Py_ssize_t count = (is_list ? append_pairs : append_named)(output, headers, index, &total);
    if (count < 0)
        return false;
    if (total > HEADERS_BYTES_MAX) {
        refuse_size(index, "headers", total, HEADERS_BYTES_MAX);
        return false;
    }
    store_u16(output->data + count_at, (uint16_t)count);
    *bytes = (uint16_t)total;
    return true;
}

typedef struct {
    Py_ssize_t count;
    PyObject *values;  /* tuples, the next two or NULL */
    PyObject *keys;
    PyObject *headers;
    Numbers priorities;
    Numbers timestamps;
    Numbers flags;
} Batch;

static bool batch_open(Batch *batch, PyObject *values, PyObject *keys, PyObject *headers, PyObject *priorities,
                       PyObject *timestamps, PyObject *flags)
{
    batch->values = PySequence_Tuple(values);
    if (!batch->values)
        return false;
    batch->count = PyTuple_Size(batch->values);
    if (keys != Py_None && !(batch->keys = snapshot(keys, "keys", batch->count)))
        return false;
    if (headers != Py_None && !(batch->headers = snapshot(headers, "headers", batch->count)))
        return false;
    return numbers_open(&batch->priorities, priorities, batch->count) &&
           numbers_open(&batch->timestamps, timestamps, batch->count) &&
           numbers_open(&batch->flags, flags, batch->count);
}

static void batch_close(Batch *batch)
{
    Py_XDECREF(batch->values);
    Py_XDECREF(batch->keys);
    Py_XDECREF(batch->headers);
    Py_XDECREF(batch->priorities.items);
    Py_XDECREF(batch->timestamps.items);
    Py_XDECREF(batch->flags.items);
}

static void write_header(uint8_t *to, const Header *header)
{
    store_u16(to, 'G' << 8 | 'Q');
    to[2] = VERSION;
    to[3] = header->flags;
    store_u32(to + 4, header->crc);
    store_u64(to + 8, header->offset);
    store_u64(to + 16, (uint64_t)header->timestamp);
    to[24] = header->priority;
    to[25] = 0;
    store_u16(to + 26, header->key_bytes);
    store_u32(to + 28, header->value_bytes);
    store_u16(to + 32, header->headers_bytes);
}

static bool encode_fields(const Batch *batch, Py_ssize_t index, const Loan *value, const Loan *key, Header *header,
                          Output *output)
{
    if (value->bytes > VALUE_BYTES_MAX) {
        refuse_size(index, "value", value->bytes, VALUE_BYTES_MAX);
        return false;
    }
    if (value->bytes && header->flags & FLAG_TOMBSTONE) {
        refuse(index, "a tombstone has no value");
        return false;
    }
    if (key->bytes > KEY_BYTES_MAX) {
        refuse_size(index, "key", key->bytes, KEY_BYTES_MAX);
        return false;
    }
    if (!output_reserve(output, HEADER_BYTES + key->bytes + value->bytes))
        return false;
    size_t start = output->bytes;
    output->bytes += HEADER_BYTES;
    output_append(output, key->data, key->bytes);
    output_append(output, value->data, value->bytes);
    header->key_bytes = (uint16_t)key->bytes;
    header->value_bytes = (uint32_t)value->bytes;
    if (batch->headers) {
        if (!append_headers(output, PyTuple_GetItem(batch->headers, index), index, &header->headers_bytes))
            return false;
        if (header->headers_bytes)
            header->flags |= FLAG_HAS_HEADERS;
    }
    write_header(output->data + start, header);
    return true;
}

static bool encode_message(const Batch *batch, Py_ssize_t index, Output *output)
{
    int64_t flags, priority, timestamp;
    if (!number_at(&batch->flags, index, &flags) || !number_at(&batch->priorities, index, &priority) ||
        !number_at(&batch->timestamps, index, &timestamp))
        return false;
    if (flags & FLAG_COMMIT && !(flags & FLAG_CONTROL)) {
        refuse(index, "COMMIT without CONTROL");
        return false;
    }
    PyObject *value_object = PyTuple_GetItem(batch->values, index);
    PyObject *key_object = batch->keys ? PyTuple_GetItem(batch->keys, index) : Py_None;
    Header header = {
        .flags = (uint8_t)((flags & ~(FLAG_HAS_HEADERS | FLAG_EMPTY_KEY)) |
                           (value_object == Py_None ? FLAG_TOMBSTONE : 0)),
        .priority = (uint8_t)priority,
        .timestamp = timestamp,
    };

    Loan value, key;
    if (!loan_open(&value, value_object, index, "value"))
        return false;
    bool done = loan_open(&key, key_object, index, "key");
    if (done) {
        if (!key.bytes && key_object != Py_None)
            header.flags |= FLAG_EMPTY_KEY;
        done = encode_fields(batch, index, &value, &key, &header, output);
        loan_close(&key);
    }
    loan_close(&value);
    return done;
}

static bool encode_messages(const Batch *batch, Output *output)
{
    output->array = PyByteArray_FromStringAndSize(NULL, 0);
    if (!output->array)
        return false;
    for (Py_ssize_t index = 0; index < batch->count; index++)
        if (!encode_message(batch, index, output))
            return false;
    return !PyByteArray_Resize(output->array, (Py_ssize_t)output->bytes);
}

static PyObject *kernel_encode(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *values, *keys, *headers, *priorities, *timestamps, *flags;
    if (!PyArg_ParseTuple(args, "OOOOOO:encode", &values, &keys, &headers, &priorities, &timestamps, &flags))
        return NULL;

    Batch batch = {
        .priorities = {"priorities", "priority", "priority must be 0 to 4", 0, PRIORITY_MAX, NULL, 0},
        .timestamps = {"timestamps", "timestamp", "timestamp must fit in 64 bits", INT64_MIN, INT64_MAX, NULL, 0},
        .flags = {"flags", "flags", "unknown flags", 0, FLAGS_KNOWN, NULL, 0},
    };
    Output output = {0};
    bool done = batch_open(&batch, values, keys, headers, priorities, timestamps, flags) &&
                encode_messages(&batch, &output);
    batch_close(&batch);
    if (!done)
        Py_CLEAR(output.array);
    return output.array;
}

/* ---- columns ---- */

enum {
    WANT_OFFSET = 1 << 0,
    WANT_TIMESTAMP = 1 << 1,
    WANT_PRIORITY = 1 << 2,
    WANT_KEY = 1 << 3,
    WANT_VALUE = 1 << 4,
    WANT_DELIVER_AT = 1 << 5,
    WANT_HEADERS = 1 << 6,
};

/* The buffers in the order of the tuple that is returned. */
enum {
    OFFSETS,
    TIMESTAMPS,
    PRIORITIES,
    KEY_VALIDITY,
    KEY_OFFSETS,
    KEY_DATA,
    VALUE_VALIDITY,
    VALUE_OFFSETS,
    VALUE_DATA,
    DELIVER_AT_VALIDITY,
    DELIVER_AT,
    HEADER_OFFSETS,
    HEADER_NAME_OFFSETS,
    HEADER_NAME_DATA,
    HEADER_VALUE_VALIDITY,
    HEADER_VALUE_OFFSETS,
    HEADER_VALUE_DATA,
    BUFFER_COUNT,
};

typedef struct {
    uint64_t count;
    uint64_t key_bytes;
    uint64_t value_bytes;
    uint64_t header_count;
    uint64_t header_name_bytes;
    uint64_t header_value_bytes;
} Totals;

static void totals_add_headers(Totals *totals, const uint8_t *record, const Header *header)
{
    HeaderCursor cursor = open_headers(record, header);
    NamedValue found;
    while (next_header(&cursor, &found)) {
        totals->header_count++;
        totals->header_name_bytes += found.name_bytes;
        totals->header_value_bytes += found.value_bytes;
    }
}

/* The first pass: validates, and finds out how much room each column needs. */
static Fault measure_columns(const uint8_t *buffer, size_t bytes, unsigned wanted, bool verify, Totals *totals,
                             size_t *position)
{
    size_t at = 0;
    Fault fault = FAULT_NONE;
    while (at < bytes) {
        Header header;
        fault = read_stored(buffer + at, bytes - at, verify, &header);
        if (fault)
            break;
        totals->count++;
        totals->key_bytes += header.key_bytes;
        totals->value_bytes += header.value_bytes;
        if (wanted & WANT_HEADERS && header.headers_bytes)
            totals_add_headers(totals, buffer + at, &header);
        at += (size_t)header.bytes;
    }
    *position = at;
    return fault;
}

/* Arrow's binary columns count their bytes in 32 bits. */
static bool totals_fit(const Totals *totals, unsigned wanted)
{
    const char *over = NULL;
    if (wanted & WANT_KEY && totals->key_bytes > INT32_MAX)
        over = "keys";
    else if (wanted & WANT_VALUE && totals->value_bytes > INT32_MAX)
        over = "values";
    else if (wanted & WANT_HEADERS && (totals->header_count > INT32_MAX || totals->header_name_bytes > INT32_MAX ||
                                       totals->header_value_bytes > INT32_MAX))
        over = "headers";
    if (over)
        PyErr_Format(PyExc_ValueError, "%s: more than 2**31 - 1 bytes for one column", over);
    return !over;
}

static void size_buffers(const Totals *totals, unsigned wanted, uint64_t sizes[BUFFER_COUNT])
{
    uint64_t validity = (totals->count + 7) / 8;
    uint64_t offsets = (totals->count + 1) * sizeof(int32_t);
    memset(sizes, 0, BUFFER_COUNT * sizeof *sizes);
    if (wanted & WANT_OFFSET)
        sizes[OFFSETS] = totals->count * sizeof(int64_t);
    if (wanted & WANT_TIMESTAMP)
        sizes[TIMESTAMPS] = totals->count * sizeof(int64_t);
    if (wanted & WANT_PRIORITY)
        sizes[PRIORITIES] = totals->count * sizeof(int32_t);
    if (wanted & WANT_KEY) {
        sizes[KEY_VALIDITY] = validity;
        sizes[KEY_OFFSETS] = offsets;
        sizes[KEY_DATA] = totals->key_bytes;
    }
    if (wanted & WANT_VALUE) {
        sizes[VALUE_VALIDITY] = validity;
        sizes[VALUE_OFFSETS] = offsets;
        sizes[VALUE_DATA] = totals->value_bytes;
    }
    if (wanted & WANT_DELIVER_AT) {
        sizes[DELIVER_AT_VALIDITY] = validity;
        sizes[DELIVER_AT] = totals->count * sizeof(int64_t);
    }
    if (wanted & WANT_HEADERS) {
        sizes[HEADER_OFFSETS] = offsets;
        sizes[HEADER_NAME_OFFSETS] = (totals->header_count + 1) * sizeof(int32_t);
        sizes[HEADER_NAME_DATA] = totals->header_name_bytes;
        sizes[HEADER_VALUE_VALIDITY] = (totals->header_count + 7) / 8;
        sizes[HEADER_VALUE_OFFSETS] = (totals->header_count + 1) * sizeof(int32_t);
        sizes[HEADER_VALUE_DATA] = totals->header_value_bytes;
    }
}

static inline void put_i32(uint8_t *column, uint64_t index, uint64_t value)
{
    int32_t item = (int32_t)value;
    memcpy(column + index * sizeof item, &item, sizeof item);
}

static inline void put_i64(uint8_t *column, uint64_t index, int64_t value)
{
    memcpy(column + index * sizeof value, &value, sizeof value);
}

static inline void put_bit(uint8_t *bitmap, uint64_t index, bool valid)
{
    if (valid)
        bitmap[index / 8] |= (uint8_t)(1u << index % 8);
}

/* False when the bytes do not fit, which only happens when the buffer has changed since it was measured. */
static inline bool put_bytes(uint8_t *offsets, uint8_t *data, uint64_t room, uint64_t index, uint64_t *used,
                             const uint8_t *from, size_t bytes)
{
    if (bytes > room - *used)
        return false;
    memcpy(data + *used, from, bytes);
    *used += bytes;
    put_i32(offsets, index + 1, *used);
    return true;
}

static inline int64_t floor_us(int64_t ns)
{
    return ns / 1000 - (ns % 1000 < 0);
}

static bool fill_headers(uint8_t *const to[BUFFER_COUNT], const uint8_t *record, const Header *header,
                         const Totals *room, Totals *used)
{
    HeaderCursor cursor = open_headers(record, header);
    NamedValue found;
    while (next_header(&cursor, &found)) {
        if (used->header_count == room->header_count)
            return false;
        put_bit(to[HEADER_VALUE_VALIDITY], used->header_count, !found.is_null);
        if (!put_bytes(to[HEADER_NAME_OFFSETS], to[HEADER_NAME_DATA], room->header_name_bytes, used->header_count,
                       &used->header_name_bytes, found.name, found.name_bytes) ||
            !put_bytes(to[HEADER_VALUE_OFFSETS], to[HEADER_VALUE_DATA], room->header_value_bytes, used->header_count,
                       &used->header_value_bytes, found.value, found.value_bytes))
            return false;
        used->header_count++;
    }
    put_i32(to[HEADER_OFFSETS], used->count + 1, used->header_count);
    return true;
}

static inline bool fill_row(uint8_t *const to[BUFFER_COUNT], unsigned wanted, const uint8_t *record,
                            const Header *header, const Totals *room, Totals *used)
{
    uint64_t row = used->count;
    if (row == room->count)
        return false;
    if (wanted & WANT_OFFSET)
        put_i64(to[OFFSETS], row, (int64_t)header->offset);
    if (wanted & WANT_TIMESTAMP)
        put_i64(to[TIMESTAMPS], row, floor_us(header->timestamp));
    if (wanted & WANT_PRIORITY)
        put_i32(to[PRIORITIES], row, header->priority);
    if (wanted & WANT_KEY) {
        put_bit(to[KEY_VALIDITY], row, has_key(header));
        if (!put_bytes(to[KEY_OFFSETS], to[KEY_DATA], room->key_bytes, row, &used->key_bytes, record_key(record),
                       header->key_bytes))
            return false;
    }
    if (wanted & WANT_VALUE) {
        put_bit(to[VALUE_VALIDITY], row, !(header->flags & FLAG_TOMBSTONE));
        if (!put_bytes(to[VALUE_OFFSETS], to[VALUE_DATA], room->value_bytes, row, &used->value_bytes,
                       record_value(record, header), header->value_bytes))
            return false;
    }
    if (wanted & WANT_DELIVER_AT) {
        Times times = find_times(record, header);
        put_bit(to[DELIVER_AT_VALIDITY], row, times.is_delayed);
        put_i64(to[DELIVER_AT], row, times.is_delayed ? floor_us(times.deliver_at) : 0);
    }
    if (wanted & WANT_HEADERS && !fill_headers(to, record, header, room, used))
        return false;
    used->count++;
    return true;
}

/* The second pass. False when the buffer is not the one that was measured. */
static bool fill_columns(uint8_t *const to[BUFFER_COUNT], const uint8_t *buffer, size_t bytes, unsigned wanted,
                         const Totals *room)
{
    Totals used = {0};
    for (size_t at = 0; at < bytes;) {
        Header header;
        if (read_stored(buffer + at, bytes - at, false, &header))
            return false;
        if (!fill_row(to, wanted, buffer + at, &header, room, &used))
            return false;
        at += (size_t)header.bytes;
    }
    return used.count == room->count && (!(wanted & WANT_KEY) || used.key_bytes == room->key_bytes) &&
           (!(wanted & WANT_VALUE) || used.value_bytes == room->value_bytes) &&
           (!(wanted & WANT_HEADERS) || (used.header_count == room->header_count &&
                                         used.header_name_bytes == room->header_name_bytes &&
                                         used.header_value_bytes == room->header_value_bytes));
}

/* A new tuple of the count and zeroed buffers, whose addresses go into `to`. */
static PyObject *new_columns(const Totals *totals, unsigned wanted, uint8_t *to[BUFFER_COUNT])
{
    uint64_t sizes[BUFFER_COUNT];
    size_buffers(totals, wanted, sizes);
    PyObject *columns = PyTuple_New(1 + BUFFER_COUNT);
    PyObject *count = PyLong_FromUnsignedLongLong(totals->count);
    if (!columns || !count || PyTuple_SetItem(columns, 0, count)) {
        Py_XDECREF(columns);
        return NULL;
    }
    for (int i = 0; i < BUFFER_COUNT; i++) {
        PyObject *array = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)sizes[i]);
        if (!array || PyTuple_SetItem(columns, 1 + i, array)) {
            Py_DECREF(columns);
            return NULL;
        }
        to[i] = (uint8_t *)PyByteArray_AsString(array);
    }
    memset(to[KEY_VALIDITY], 0, sizes[KEY_VALIDITY]);
    memset(to[VALUE_VALIDITY], 0, sizes[VALUE_VALIDITY]);
    memset(to[DELIVER_AT_VALIDITY], 0, sizes[DELIVER_AT_VALIDITY]);
    memset(to[HEADER_VALUE_VALIDITY], 0, sizes[HEADER_VALUE_VALIDITY]);
    static const int offsets[] = {KEY_OFFSETS, VALUE_OFFSETS, HEADER_OFFSETS, HEADER_NAME_OFFSETS,
                                  HEADER_VALUE_OFFSETS};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++)
        if (sizes[offsets[i]])
            put_i32(to[offsets[i]], 0, 0);
    return columns;
}

static PyObject *kernel_columns(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer view;
    uint64_t mask;
    int verify;
    if (!PyArg_ParseTuple(args, "y*O&p:columns", &view, parse_natural, &mask, &verify))
        return NULL;

    const uint8_t *buffer = view_bytes(&view);
    size_t bytes = (size_t)view.len;
    unsigned wanted = (unsigned)mask;
    Totals totals = {0};
    size_t position;
    PyThreadState *released = gil_release(view.len);
    Fault fault = measure_columns(buffer, bytes, wanted, verify, &totals, &position);
    gil_acquire(released);

    uint8_t *to[BUFFER_COUNT];
    PyObject *columns = totals_fit(&totals, wanted) ? new_columns(&totals, wanted, to) : NULL;
    if (columns) {
        released = gil_release(view.len);
        bool filled = fill_columns(to, buffer, position, wanted, &totals);
        gil_acquire(released);
        if (!filled) {
            Py_CLEAR(columns);
            PyErr_SetString(PyExc_RuntimeError, "the buffer changed while it was read");
        }
    }
    PyBuffer_Release(&view);
    return columns ? Py_BuildValue("(inN)", (int)fault, (Py_ssize_t)position, columns) : NULL;
}

/* ---- filter, strip and latest ---- */

typedef struct {
    int64_t from_offset;
    int64_t to_offset;
    uint64_t hide_flags;
    const uint8_t *hidden; /* pairs of int64 in machine order, [first, end) */
    size_t hidden_count;
    int64_t due;
    PyObject *latest; /* a dict, or NULL */
    int64_t tombstones_before;
} FilterRequest;

static inline int64_t hidden_bound(const FilterRequest *request, size_t index)
{
    int64_t bound;
    memcpy(&bound, request->hidden + index * sizeof bound, sizeof bound);
    return bound;
}

static bool hidden_is_sorted(const FilterRequest *request)
{
    for (size_t i = 1; i < request->hidden_count * 2; i++)
        if (hidden_bound(request, i) < hidden_bound(request, i - 1))
            return false;
    return true;
}

static bool hidden_holds(const FilterRequest *request, int64_t offset)
{
    size_t low = 0, high = request->hidden_count; /* the first range that ends after the offset */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (hidden_bound(request, middle * 2 + 1) <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low < request->hidden_count && hidden_bound(request, low * 2) <= offset;
}

/* 1 when the table holds a larger offset for the key, 0 when not, -1 with an exception set. */
static int is_superseded(PyObject *latest, const uint8_t *key, size_t bytes, int64_t offset)
{
    PyObject *name = PyBytes_FromStringAndSize((const char *)key, (Py_ssize_t)bytes);
    if (!name)
        return -1;
    PyObject *found = PyDict_GetItemWithError(latest, name);
    int result = 0;
    if (found && !PyLong_Check(found)) {
        PyErr_SetString(PyExc_TypeError, "latest must map bytes to int");
        result = -1;
    } else if (found) {
        int overflow;
        long long last = PyLong_AsLongLongAndOverflow(found, &overflow);
        result = overflow ? overflow > 0 : last > offset;
    } else if (PyErr_Occurred()) {
        result = -1;
    }
    Py_DECREF(name);
    return result;
}

/* 1, 0, or -1 with an exception set. */
static int is_hidden(const FilterRequest *request, const uint8_t *record, const Header *header)
{
    int64_t offset = (int64_t)header->offset;
    if (offset < request->from_offset || offset >= request->to_offset || header->flags & request->hide_flags)
        return 1;
    if (request->hidden_count && hidden_holds(request, offset))
        return 1;
    if (request->due != INT64_MAX && header->headers_bytes) {
        Times times = find_times(record, header);
        if (times.is_delayed && times.deliver_at > request->due)
            return 1;
    }
    if (header->flags & FLAG_CONTROL)
        return 0;
    if (header->flags & FLAG_TOMBSTONE && header->timestamp < request->tombstones_before)
        return 1;
    if (request->latest && has_key(header))
        return is_superseded(request->latest, record_key(record), header->key_bytes, offset);
    return 0;
}

/* Copies the visible records to `to`, which has room for all, a run of neighbours at a time. Returns the bytes
 * copied, or -1 with an exception set. */
static Py_ssize_t filter_records(const FilterRequest *request, const uint8_t *buffer, size_t bytes, uint8_t *to,
                                 Fault *fault, size_t *position)
{
    size_t at = 0, run = 0, copied = 0;
    *fault = FAULT_NONE;
    while (at < bytes) {
        Header header;
        *fault = read_stored(buffer + at, bytes - at, false, &header);
        if (*fault)
            break;
        int hidden = is_hidden(request, buffer + at, &header);
        if (hidden < 0)
            return -1;
        if (hidden) {
            memcpy(to + copied, buffer + run, at - run);
            copied += at - run;
            run = at + (size_t)header.bytes;
        }
        at += (size_t)header.bytes;
    }
    memcpy(to + copied, buffer + run, at - run);
    *position = at;
    return (Py_ssize_t)(copied + at - run);
}

static PyObject *filter_buffer(const FilterRequest *request, const Py_buffer *view)
{
    PyObject *visible = PyByteArray_FromStringAndSize(NULL, view->len);
    if (!visible)
        return NULL;
    uint8_t *to = (uint8_t *)PyByteArray_AsString(visible);
    Fault fault;
    size_t position;
    PyThreadState *released = request->latest ? NULL : gil_release(view->len);
    Py_ssize_t copied = filter_records(request, view_bytes(view), (size_t)view->len, to, &fault, &position);
    gil_acquire(released);
    if (copied < 0 || PyByteArray_Resize(visible, copied)) {
        Py_DECREF(visible);
        return NULL;
    }
    return Py_BuildValue("(inN)", (int)fault, (Py_ssize_t)position, visible);
}

static PyObject *kernel_filter(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer view, hidden;
    FilterRequest request = {0};
    if (!PyArg_ParseTuple(args, "y*O&O&O&y*O&O&O&:filter", &view, parse_int64, &request.from_offset, parse_int64,
                          &request.to_offset, parse_natural, &request.hide_flags, &hidden, parse_int64, &request.due,
                          parse_dict_or_none, &request.latest, parse_int64, &request.tombstones_before))
        return NULL;

    PyObject *result = NULL;
    request.hidden = view_bytes(&hidden);
    request.hidden_count = (size_t)hidden.len / (2 * sizeof(int64_t));
    if (hidden.len % (2 * sizeof(int64_t)))
        PyErr_SetString(PyExc_ValueError, "hidden must hold pairs of int64");
    else if (!hidden_is_sorted(&request))
        PyErr_SetString(PyExc_ValueError, "hidden must be sorted and disjoint");
    else
        result = filter_buffer(&request, &view);
    PyBuffer_Release(&hidden);
    PyBuffer_Release(&view);
    return result;
}

enum { KEEP_KEY = 1, KEEP_VALUE = 2, KEEP_HEADERS = 4 };

/* Copies what is kept of each record to `to`, which has room for all of it. Returns the bytes copied. */
static size_t strip_records(const uint8_t *buffer, size_t bytes, unsigned keep, uint8_t *to, Fault *fault,
                            size_t *position)
{
    size_t at = 0, copied = 0;
    *fault = FAULT_NONE;
    while (at < bytes) {
        const uint8_t *record = buffer + at;
        Header header;
        *fault = read_stored(record, bytes - at, false, &header);
        if (*fault)
            break;
        Header kept = header;
        if (!(keep & KEEP_KEY)) {
            kept.key_bytes = 0;
            kept.flags &= (uint8_t)~FLAG_EMPTY_KEY;
        }
        if (!(keep & KEEP_VALUE)) {
            kept.value_bytes = 0;
            kept.flags &= (uint8_t)~FLAG_COMPRESSED;
        }
        if (!(keep & KEEP_HEADERS)) {
            kept.headers_bytes = 0;
            kept.flags &= (uint8_t)~FLAG_HAS_HEADERS;
        }
        uint8_t *stripped = to + copied, *end = stripped + HEADER_BYTES;
        memcpy(end, record_key(record), kept.key_bytes);
        end += kept.key_bytes;
        memcpy(end, record_value(record, &header), kept.value_bytes);
        end += kept.value_bytes;
        memcpy(end, record_headers(record, &header), kept.headers_bytes);
        end += kept.headers_bytes;
        write_header(stripped, &kept);
        copied += (size_t)(end - stripped);
        at += (size_t)header.bytes;
    }
    *position = at;
    return copied;
}

/* Writes the crcs of records that were put together just now. In a pass of its own: to read whole words of what was
 * written field by field a moment ago, a processor has to wait. */
static void seal_records(uint8_t *buffer, size_t bytes)
{
    Header header;
    for (size_t at = 0; at < bytes && !read_header(buffer + at, bytes - at, &NO_LIMITS, &header);
         at += (size_t)header.bytes)
        store_u32(buffer + at + 4, record_crc(buffer + at, (size_t)header.bytes));
}

static PyObject *kernel_strip(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer view;
    uint64_t keep;
    if (!PyArg_ParseTuple(args, "y*O&:strip", &view, parse_natural, &keep))
        return NULL;

    PyObject *stripped = PyByteArray_FromStringAndSize(NULL, view.len);
    PyObject *result = NULL;
    if (stripped) {
        uint8_t *to = (uint8_t *)PyByteArray_AsString(stripped);
        Fault fault;
        size_t position;
        PyThreadState *released = gil_release(view.len);
        size_t copied = strip_records(view_bytes(&view), (size_t)view.len, (unsigned)keep, to, &fault, &position);
        seal_records(to, copied);
        gil_acquire(released);
        if (PyByteArray_Resize(stripped, (Py_ssize_t)copied))
            Py_DECREF(stripped);
        else
            result = Py_BuildValue("(inN)", (int)fault, (Py_ssize_t)position, stripped);
    }
    PyBuffer_Release(&view);
    return result;
}

static bool latest_note(PyObject *table, const uint8_t *record, const Header *header)
{
    PyObject *key = PyBytes_FromStringAndSize((const char *)record_key(record), header->key_bytes);
    PyObject *offset = key ? PyLong_FromUnsignedLongLong(header->offset) : NULL;
    bool done = offset && !PyDict_SetItem(table, key, offset);
    Py_XDECREF(offset);
    Py_XDECREF(key);
    return done;
}

static PyObject *kernel_latest(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer view;
    PyObject *table;
    if (!PyArg_ParseTuple(args, "y*O&:latest", &view, parse_dict, &table))
        return NULL;

    const uint8_t *buffer = view_bytes(&view);
    size_t bytes = (size_t)view.len, at = 0;
    Fault fault = FAULT_NONE;
    bool done = true;
    while (at < bytes) {
        Header header;
        fault = read_stored(buffer + at, bytes - at, false, &header);
        if (fault)
            break;
        if (has_key(&header) && !(header.flags & FLAG_CONTROL) && !latest_note(table, buffer + at, &header)) {
            done = false;
            break;
        }
        at += (size_t)header.bytes;
    }
    PyBuffer_Release(&view);
    return done ? Py_BuildValue("(in)", (int)fault, (Py_ssize_t)at) : NULL;
}

/* How long the messages of each priority have waited at `now`: since they were stored, or since they were due. The
 * sums are in microseconds, because a few old messages in nanoseconds are more than 64 bits hold. */
static PyObject *kernel_waits(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer view;
    long long now;
    if (!PyArg_ParseTuple(args, "y*L:waits", &view, &now))
        return NULL;

    const uint8_t *buffer = view_bytes(&view);
    size_t bytes = (size_t)view.len, at = 0;
    uint64_t counts[PRIORITY_MAX + 1] = {0}, waited[PRIORITY_MAX + 1] = {0};
    Fault fault = FAULT_NONE;
    while (at < bytes) {
        Header header;
        fault = read_stored(buffer + at, bytes - at, false, &header);
        if (fault)
            break;
        if (!(header.flags & FLAG_CONTROL)) {
            int64_t since = header.timestamp;
            if (header.headers_bytes) {
                Times times = find_times(buffer + at, &header);
                if (times.is_delayed && times.deliver_at > since)
                    since = times.deliver_at;
            }
            counts[header.priority]++;
            if (now > since)
                waited[header.priority] += ((uint64_t)now - (uint64_t)since) / 1000;
        }
        at += (size_t)header.bytes;
    }
    PyBuffer_Release(&view);
    return Py_BuildValue("(in(KKKKK)(KKKKK))", (int)fault, (Py_ssize_t)at, (unsigned long long)counts[0],
                         (unsigned long long)counts[1], (unsigned long long)counts[2], (unsigned long long)counts[3],
                         (unsigned long long)counts[4], (unsigned long long)waited[0], (unsigned long long)waited[1],
                         (unsigned long long)waited[2], (unsigned long long)waited[3], (unsigned long long)waited[4]);
}

/* ---- outline and select ---- */

/* Small entries of one size in memory of their own, which may grow while the GIL is released. */
typedef struct {
    uint8_t *data;
    size_t bytes;
    size_t room;
} Entries;

static bool entries_grow(Entries *entries)
{
    size_t room = 2 * entries->room + 1024;
    uint8_t *data = realloc(entries->data, room);
    if (!data)
        return false;
    entries->data = data;
    entries->room = room;
    return true;
}

/* False when memory is out. */
static inline bool entries_add(Entries *entries, const void *entry, size_t bytes)
{
    if (bytes > entries->room - entries->bytes && !entries_grow(entries))
        return false;
    memcpy(entries->data + entries->bytes, entry, bytes);
    entries->bytes += bytes;
    return true;
}

static PyObject *entries_bytes(const Entries *entries)
{
    return PyBytes_FromStringAndSize(entries->data ? (const char *)entries->data : "", (Py_ssize_t)entries->bytes);
}

/* Both walks need offsets that rise. `expected` is the least that may come. */
static inline Fault read_rising(const uint8_t *at, size_t left, uint64_t expected, Header *header)
{
    Fault fault = read_stored(at, left, false, header);
    return !fault && header->offset < expected ? FAULT_OFFSET : fault;
}

typedef struct {
    uint64_t offset;
    int64_t deliver_at;
    uint32_t key_crc;
    uint32_t priority;
} DelayedEntry;

typedef struct {
    uint64_t offset;
    int64_t expires_at;
} ExpiringEntry;

typedef struct {
    uint64_t offset;
    uint64_t position; /* of the name of the group in the buffer */
    uint64_t bytes;
} AddressedEntry;

_Static_assert(sizeof(DelayedEntry) == 24 && sizeof(ExpiringEntry) == 16 && sizeof(AddressedEntry) == 24,
               "Python reads them as =QqII, =Qq and =QQQ");

typedef struct {
    uint64_t count;
    int64_t first_offset;
    int64_t last_offset;
    Entries lanes[PRIORITY_MAX + 1];
    Entries control;
    Entries delayed;
    Entries expiring;
    Entries holes;
    Entries addressed;
    Fault fault;
    size_t position;
} Outline;

/* These two write down what is not plain, apart from the walk, whose registers they would take. False when memory is
 * out. */
__attribute__((noinline)) static bool outline_hole(Outline *outline, uint64_t first, uint64_t end)
{
    uint64_t hole[2] = {first, end};
    return entries_add(&outline->holes, hole, sizeof hole);
}

__attribute__((noinline)) static bool outline_note(Outline *outline, const uint8_t *buffer, size_t at,
                                                   const Header *header)
{
    const uint8_t *record = buffer + at;
    if (header->flags & FLAG_CONTROL)
        return entries_add(&outline->control, &header->offset, sizeof header->offset);
    if (header->priority != PRIORITY_NORMAL &&
        !entries_add(&outline->lanes[header->priority], &header->offset, sizeof header->offset))
        return false;
    if (!header->headers_bytes)
        return true;
    Times times = find_times(record, header);
    if (times.is_delayed) {
        uint32_t key_crc = header->key_bytes ? ~crc_update(~0u, record_key(record), header->key_bytes) : 0;
        DelayedEntry entry = {header->offset, times.deliver_at, key_crc, header->priority};
        if (!entries_add(&outline->delayed, &entry, sizeof entry))
            return false;
    }
    if (times.expires) {
        ExpiringEntry entry = {header->offset, times.expires_at};
        if (!entries_add(&outline->expiring, &entry, sizeof entry))
            return false;
    }
    if (times.group_bytes) {
        AddressedEntry entry = {header->offset, (uint64_t)(times.group - buffer), times.group_bytes};
        return entries_add(&outline->addressed, &entry, sizeof entry);
    }
    return true;
}

/* False when memory is out. */
static bool outline_records(Outline *outline, const uint8_t *buffer, size_t bytes)
{
    uint64_t count = 0, first = 0, expected = 0;
    size_t at = 0;
    Fault fault = FAULT_NONE;
    while (at < bytes) {
        Header header;
        fault = read_rising(buffer + at, bytes - at, expected, &header);
        if (fault)
            break;
        if (!count)
            first = expected = header.offset;
        if (header.offset != expected && !outline_hole(outline, expected, header.offset))
            return false;
        if (header.priority != PRIORITY_NORMAL || header.flags & (FLAG_HAS_HEADERS | FLAG_CONTROL)) {
            Header noted = header;
            if (!outline_note(outline, buffer, at, &noted))
                return false;
        }
        count++;
        expected = header.offset + 1;
        at += (size_t)header.bytes;
    }
    outline->count = count;
    outline->first_offset = count ? (int64_t)first : -1;
    outline->last_offset = count ? (int64_t)(expected - 1) : -1;
    outline->fault = fault;
    outline->position = at;
    return true;
}

static PyObject *outline_tuple(const Outline *outline)
{
    const Entries *lanes = outline->lanes;
    return Py_BuildValue("(inKLL(NNNNN)NNNNN)", (int)outline->fault, (Py_ssize_t)outline->position,
                         (unsigned long long)outline->count, (long long)outline->first_offset,
                         (long long)outline->last_offset, entries_bytes(&lanes[0]), entries_bytes(&lanes[1]),
                         entries_bytes(&lanes[2]), entries_bytes(&lanes[3]), entries_bytes(&lanes[4]),
                         entries_bytes(&outline->control), entries_bytes(&outline->delayed),
                         entries_bytes(&outline->expiring), entries_bytes(&outline->holes),
                         entries_bytes(&outline->addressed));
}

static void outline_close(Outline *outline)
{
    for (int i = 0; i <= PRIORITY_MAX; i++)
        free(outline->lanes[i].data);
    free(outline->control.data);
    free(outline->delayed.data);
    free(outline->expiring.data);
    free(outline->holes.data);
    free(outline->addressed.data);
}

static PyObject *kernel_outline(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "y*:outline", &view))
        return NULL;

    Outline outline = {0};
    PyThreadState *released = gil_release(view.len);
    bool enough = outline_records(&outline, view_bytes(&view), (size_t)view.len);
    gil_acquire(released);

    PyObject *result = enough ? outline_tuple(&outline) : PyErr_NoMemory();
    outline_close(&outline);
    PyBuffer_Release(&view);
    return result;
}

typedef struct {
    size_t start;
    size_t bytes;
} ByteRun;

typedef struct {
    const uint8_t *offsets; /* uint64 in machine order, sorted */
    size_t count;
    uint64_t bytes_max;
} Wanted;

typedef struct {
    Entries runs; /* of ByteRun: what is to be copied */
    uint64_t count;
    uint64_t bytes;
    int64_t last_offset;
    unsigned flags;
    Fault fault;
    size_t position;
} Selection;

static inline uint64_t wanted_at(const Wanted *wanted, size_t index)
{
    uint64_t offset;
    memcpy(&offset, wanted->offsets + index * sizeof offset, sizeof offset);
    return offset;
}

static bool wanted_is_sorted(const Wanted *wanted)
{
    for (size_t i = 1; i < wanted->count; i++)
        if (wanted_at(wanted, i) < wanted_at(wanted, i - 1))
            return false;
    return true;
}

/* Walks the records beside the wanted offsets and notes the runs of bytes to copy. False when memory is out. */
static bool select_runs(Selection *selection, const Wanted *given, const uint8_t *buffer, size_t bytes)
{
    const Wanted wanted = *given;
    uint64_t expected = 0, count = 0, copied = 0;
    int64_t last_offset = -1;
    unsigned flags = 0;
    size_t at = 0, next = 0;
    ByteRun run = {0, 0};
    Fault fault = FAULT_NONE;
    while (at < bytes && next < wanted.count) {
        Header header;
        fault = read_rising(buffer + at, bytes - at, expected, &header);
        if (fault)
            break;
        while (next < wanted.count && wanted_at(&wanted, next) < header.offset)
            next++;
        if (next == wanted.count)
            break;
        if (wanted_at(&wanted, next) == header.offset) {
            if (count && copied + header.bytes > wanted.bytes_max)
                break;
            if (run.start + run.bytes != at) {
                if (run.bytes && !entries_add(&selection->runs, &run, sizeof run))
                    return false;
                run = (ByteRun){at, 0};
            }
            run.bytes += (size_t)header.bytes;
            count++;
            copied += header.bytes;
            last_offset = (int64_t)header.offset;
            flags |= header.flags;
            next++;
        }
        expected = header.offset + 1;
        at += (size_t)header.bytes;
    }
    selection->count = count;
    selection->bytes = copied;
    selection->last_offset = last_offset;
    selection->flags = flags;
    selection->fault = fault;
    selection->position = at;
    return !run.bytes || entries_add(&selection->runs, &run, sizeof run);
}

/* The runs lie inside the buffer, whatever has become of the records in it. */
static void copy_runs(const Selection *selection, const uint8_t *buffer, uint8_t *to)
{
    for (size_t i = 0; i < selection->runs.bytes; i += sizeof(ByteRun)) {
        ByteRun run;
        memcpy(&run, selection->runs.data + i, sizeof run);
        memcpy(to, buffer + run.start, run.bytes);
        to += run.bytes;
    }
}

static PyObject *select_buffer(Selection *selection, const Wanted *wanted, const Py_buffer *view)
{
    const uint8_t *buffer = view_bytes(view);
    PyThreadState *released = gil_release(view->len);
    bool enough = select_runs(selection, wanted, buffer, (size_t)view->len);
    gil_acquire(released);
    if (!enough)
        return PyErr_NoMemory();

    PyObject *records = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)selection->bytes);
    if (!records)
        return NULL;
    uint8_t *to = (uint8_t *)PyByteArray_AsString(records);
    released = gil_release((Py_ssize_t)selection->bytes);
    copy_runs(selection, buffer, to);
    gil_acquire(released);
    return Py_BuildValue("(inNKLI)", (int)selection->fault, (Py_ssize_t)selection->position, records,
                         (unsigned long long)selection->count, (long long)selection->last_offset, selection->flags);
}

static PyObject *kernel_select(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer view, offsets;
    Wanted wanted;
    if (!PyArg_ParseTuple(args, "y*y*O&:select", &view, &offsets, parse_natural, &wanted.bytes_max))
        return NULL;

    PyObject *result = NULL;
    Selection selection = {0};
    wanted.offsets = view_bytes(&offsets);
    wanted.count = (size_t)offsets.len / sizeof(uint64_t);
    PyThreadState *released = gil_release(offsets.len);
    bool is_sorted = wanted_is_sorted(&wanted);
    gil_acquire(released);
    if (offsets.len % sizeof(uint64_t))
        PyErr_SetString(PyExc_ValueError, "wanted must hold uint64");
    else if (!is_sorted)
        PyErr_SetString(PyExc_ValueError, "wanted must be sorted");
    else
        result = select_buffer(&selection, &wanted, &view);
    free(selection.runs.data);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&view);
    return result;
}

/* ---- module ---- */

static PyMethodDef kernel_methods[] = {
    {"crc32c", kernel_crc32c, METH_VARARGS, "crc32c(data, crc) -> int"},
    {"crc32c_table", kernel_crc32c_table, METH_VARARGS, "crc32c_table(data, crc) -> int: without the hardware"},
    {"murmur2", kernel_murmur2, METH_O, "murmur2(key) -> int"},
    {"hardware_crc", kernel_hardware_crc, METH_NOARGS, "hardware_crc() -> bool"},
    {"encode", kernel_encode, METH_VARARGS,
     "encode(values, keys, headers, priorities, timestamps, flags) -> bytearray"},
    {"stamp", kernel_stamp, METH_VARARGS,
     "stamp(buffer, first_offset, timestamp, flags_allowed, value_bytes_max, position, next_index_at) -> summary"},
    {"scan", kernel_scan, METH_VARARGS,
     "scan(buffer, min_offset, dense, from_offset, to_offset, position, next_index_at, positions) -> summary"},
    {"resync", kernel_resync, METH_VARARGS, "resync(buffer, start, min_offset, max_offset) -> int"},
    {"decode", kernel_decode, METH_VARARGS,
     "decode(buffer, origin, record_type, verify) -> (fault, position, records)"},
    {"columns", kernel_columns, METH_VARARGS, "columns(buffer, wanted, verify) -> (fault, position, columns)"},
    {"filter", kernel_filter, METH_VARARGS,
     "filter(buffer, from_offset, to_offset, hide_flags, hidden, due, latest, tombstones_before)"
     " -> (fault, position, visible)"},
    {"strip", kernel_strip, METH_VARARGS, "strip(buffer, keep) -> (fault, position, stripped)"},
    {"latest", kernel_latest, METH_VARARGS, "latest(buffer, table) -> (fault, position)"},
    {"waits", kernel_waits, METH_VARARGS, "waits(buffer, now) -> (fault, position, counts, waited_us)"},
    {"outline", kernel_outline, METH_VARARGS,
     "outline(buffer) -> (fault, position, record_count, first_offset, last_offset, lanes, control, delayed, expiring,"
     " holes, addressed)"},
    {"select", kernel_select, METH_VARARGS,
     "select(buffer, wanted, max_bytes) -> (fault, position, records, record_count, last_offset, flags)"},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module)
{
    ModuleState *state = PyModule_GetState(module);
    crc_setup();
    state->record_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &record_spec, NULL);
    return state->record_type ? PyModule_AddType(module, state->record_type) : -1;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    ModuleState *state = PyModule_GetState(module);
    Py_VISIT(state->record_type);
    return 0;
}

static int module_clear(PyObject *module)
{
    ModuleState *state = PyModule_GetState(module);
    Py_CLEAR(state->record_type);
    return 0;
}

static void module_free(void *module)
{
    module_clear(module);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef kernel_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "goqueue.record._kernel",
    .m_doc = "The record kernel in C. `goqueue.record.kernel` is its typed face.",
    .m_size = sizeof(ModuleState),
    .m_methods = kernel_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__kernel(void)
{
    return PyModuleDef_Init(&kernel_module);
}
