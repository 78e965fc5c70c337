/* The contract between rialto and its plugins, for authors in C. docs/abi.md explains it.
 *
 * Every entry may be called from any thread and by several threads at once. What is lent (rialto_str, rialto_bytes,
 * rialto_bytes_mut, rialto_tensor) is valid until the call returns; what is handed over (rialto_owned) is released by
 * the side that receives it, through the function that comes with it. */
#ifndef RIALTO_PLUGIN_H
#define RIALTO_PLUGIN_H

#include <stdint.h>

#define RIALTO_MAGIC "RIALTOD1" /* 8 bytes, without the NUL */
#define RIALTO_ABI_MAJOR 1u
#define RIALTO_ABI_MINOR 0u

enum { RIALTO_PANIC_NONE = 0, RIALTO_PANIC_UNWIND = 1, RIALTO_PANIC_ABORT = 2 };

enum {
    RIALTO_OK = 0,
    RIALTO_INVALID_ARGUMENT = 1,
    RIALTO_NOT_FOUND = 2,
    RIALTO_UNSUPPORTED = 3,
    RIALTO_CORRUPT = 4,
    RIALTO_IO = 5,
    RIALTO_MEMORY = 6,
    RIALTO_DEVICE = 7,
    RIALTO_ABI_MISMATCH = 8,
    RIALTO_CANCELLED = 9,
    RIALTO_NOT_TOTAL = 10,
    RIALTO_DIFFERS = 11,
    RIALTO_PANIC = 12,
    RIALTO_INTERNAL = 13
};

enum { RIALTO_ERROR = 1, RIALTO_WARN = 2, RIALTO_INFO = 3, RIALTO_DEBUG = 4, RIALTO_TRACE = 5 };

/* Lent: a null pointer with length 0 is empty. */
typedef struct { const uint8_t *data; uint64_t len; } rialto_bytes;
typedef struct { uint8_t *data; uint64_t len; } rialto_bytes_mut;
typedef struct { const char *data; uint64_t len; } rialto_str; /* UTF-8, no NUL at the end */

/* Handed over. */
typedef struct {
    uint8_t *data;
    uint64_t len;
    void *context;
    void (*release)(uint8_t *data, uint64_t len, void *context); /* null: nothing to free */
} rialto_owned;

typedef struct {
    uint32_t code;
    rialto_owned detail; /* UTF-8: {"slug", "message", "help"} or plain text */
} rialto_status;

typedef struct {
    uint32_t dtype;
    uint32_t rank;
    const uint64_t *extents; /* elements, outermost first */
    const uint8_t *data;
    uint64_t len;            /* bytes */
} rialto_tensor;

typedef struct { const rialto_tensor *data; uint64_t len; } rialto_tensors;

typedef struct {
    uint32_t struct_size;
    uint32_t abi_major;
    uint32_t abi_minor;
    uint32_t reserved;
    rialto_str capabilities; /* JSON list */
    void *context;
    void (*log)(void *context, uint32_t level, rialto_str target, rialto_str message);
} rialto_host_table;

typedef rialto_status (*rialto_call)(void *instance, rialto_bytes request, rialto_owned *reply);

/* bridge/1. No entry is null. */
typedef struct {
    rialto_call describe;
    rialto_call claim;
    rialto_call map_config;
    rialto_call unmap_config;
    rialto_call weight_map;
    rialto_call placement;
    rialto_call pipeline_layout;
    rialto_call codecs;
    const void *(*query_extension)(void *instance, rialto_str id);
    rialto_status (*release)(void *instance);
} rialto_bridge_table;

/* dequantize/1. */
typedef struct {
    rialto_status (*dequantize)(void *instance, rialto_str codec, rialto_tensor tensor, rialto_tensors companions,
                                rialto_bytes_mut out);
} rialto_dequantize_table;

typedef struct {
    void *instance;
    const rialto_bridge_table *table;
} rialto_bridge_handle;

/* The exported symbol is `const rialto_plugin_decl rialto_plugin_v1`. Texts are padded with NUL. */
typedef struct {
    char magic[8];
    uint32_t struct_size;
    uint32_t abi_major;
    uint32_t abi_minor;
    uint32_t panic_strategy;
    char target[64];
    char abi_crate_version[32];
    char layout_version[32];
    char name[64];
    char version[64];
    const void *layout; /* null in C */
    rialto_status (*open)(const rialto_host_table *host, rialto_bridge_handle *handle);
} rialto_plugin_decl;

#endif
