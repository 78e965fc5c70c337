/* The contract between rialto and its plugins, for authors in C and C++. docs/abi.md explains it.
 *
 * Made from the tables of the crate rialto-abi: do not edit. What is lent (rialto_str, rialto_bytes, rialto_bytes_mut,
 * rialto_tensor, rialto_tensors) is valid until the call returns; what is handed over (rialto_owned) is released by the side
 * that receives it, through the function that comes with it. Every entry may be called from any thread and by several
 * threads at once. */
#ifndef RIALTO_H
#define RIALTO_H

#include <stdint.h>

#if UINTPTR_MAX != UINT64_MAX
#error "rialto needs a target with 64-bit pointers"
#endif

/* First bytes of a declaration: as characters, since a text would have a NUL. */
#define RIALTO_MAGIC {'R', 'I', 'A', 'L', 'T', 'O', 'V', '1'}

/* Another major number does not load, any minor number does. */
#define RIALTO_ABI_MAJOR 1u
#define RIALTO_ABI_MINOR 1u

/* Id of rialto_dequantize_table. */
#define RIALTO_DEQUANTIZE "dequantize/1"

/* Id of rialto_program_table; since 1.1. */
#define RIALTO_PROGRAM "program/1"

/* Triple of the target, which must be the host's. -DRIALTO_TARGET="\"...\"" gives another: of a toolchain with a vendor of
 * its own, say, or of a C library that is not known here. */
#ifndef RIALTO_TARGET
#if defined(__linux__) && !defined(__ANDROID__) && !defined(__ILP32__)
#if defined(__x86_64__)
#define RIALTO_MACHINE "x86_64"
#elif defined(__aarch64__) && !defined(__AARCH64EB__)
#define RIALTO_MACHINE "aarch64"
#endif
#if defined(__GLIBC__) && !defined(__UCLIBC__)
#define RIALTO_LIBC "gnu"
#elif !defined(__GLIBC__) && defined(__DEFINED_uint64_t)
#define RIALTO_LIBC "musl"
#endif
#endif
#if !defined(RIALTO_MACHINE) || !defined(RIALTO_LIBC)
#error "rialto.h does not know this target: name its triple with -DRIALTO_TARGET"
#else
#define RIALTO_TARGET RIALTO_MACHINE "-unknown-linux-" RIALTO_LIBC
#endif
#endif

/* How a library's panics end. */
enum {
    RIALTO_PANIC_NONE = 0, /* It has none: a library written in C. */
    RIALTO_PANIC_UNWIND = 1, /* They unwind to the table entry, which turns them into RIALTO_PANIC. */
    RIALTO_PANIC_ABORT = 2 /* They end the process. */
};

/* How a call ended. */
enum {
    RIALTO_OK = 0, /* Done. */
    RIALTO_INVALID_ARGUMENT = 1, /* The caller asked for something that makes no sense. */
    RIALTO_NOT_FOUND = 2, /* It is not there. */
    RIALTO_UNSUPPORTED = 3, /* It is understood and not supported. */
    RIALTO_CORRUPT = 4, /* The data is corrupt. */
    RIALTO_IO = 5, /* Reading or writing failed. */
    RIALTO_MEMORY = 6, /* Memory or budget is spent. */
    RIALTO_DEVICE = 7, /* A device failed. */
    RIALTO_ABI_MISMATCH = 8, /* Two sides of the ABI do not fit. */
    RIALTO_CANCELLED = 9, /* Somebody asked to stop. */
    RIALTO_NOT_TOTAL = 10, /* A mapping is not total. */
    RIALTO_DIFFERS = 11, /* A verification found a difference. */
    RIALTO_PANIC = 12, /* The callee panicked; the instance answers no more. */
    RIALTO_INTERNAL = 13 /* A fault of the callee's own. */
};

/* How much a line of log matters. */
enum {
    RIALTO_ERROR = 1, /* The run fails. */
    RIALTO_WARN = 2, /* The result needs a look. */
    RIALTO_INFO = 3, /* A stage. */
    RIALTO_DEBUG = 4, /* A tensor. */
    RIALTO_TRACE = 5 /* A byte range. */
};

/* Element types, by their safetensors names. */
enum {
    RIALTO_DTYPE_BF16 = 1,
    RIALTO_DTYPE_F16 = 2,
    RIALTO_DTYPE_F32 = 3,
    RIALTO_DTYPE_F64 = 4,
    RIALTO_DTYPE_F8_E4M3 = 5,
    RIALTO_DTYPE_F8_E5M2 = 6,
    RIALTO_DTYPE_F8_E8M0 = 7,
    RIALTO_DTYPE_I8 = 8,
    RIALTO_DTYPE_I16 = 9,
    RIALTO_DTYPE_I32 = 10,
    RIALTO_DTYPE_I64 = 11,
    RIALTO_DTYPE_U8 = 12,
    RIALTO_DTYPE_U16 = 13,
    RIALTO_DTYPE_U32 = 14,
    RIALTO_DTYPE_U64 = 15,
    RIALTO_DTYPE_BOOL = 16
};

#ifdef __cplusplus
extern "C" {
#endif

/* Lent: a pointer and a length. A null pointer with length 0 is empty. */

/* Text: UTF-8, no NUL at the end. */
typedef struct rialto_str {
    const char *data;
    uint64_t len;
} rialto_str;

/* Initializes a rialto_str: rialto_str name = RIALTO_TEXT("toy"); */
#define RIALTO_TEXT(literal) {literal, sizeof(literal) - 1}

/* Bytes. */
typedef struct rialto_bytes {
    const uint8_t *data;
    uint64_t len;
} rialto_bytes;

/* Bytes to write. */
typedef struct rialto_bytes_mut {
    uint8_t *data;
    uint64_t len;
} rialto_bytes_mut;

/* What the host lends to the plugin's open: valid and unchanged for the life of the process. */
typedef struct rialto_host_table {
    /* Size of this struct in bytes. */
    uint32_t struct_size;
    /* The contract's major number as the host has it. */
    uint32_t abi_major;
    /* Its minor number. */
    uint32_t abi_minor;
    /* Always 0. */
    uint32_t reserved;
    /* JSON list of what the host can read in documents: ["rule/map/1"], say. */
    rialto_str capabilities;
    /* First argument of the entries below; opaque, may be null. */
    void *context;
    /* Takes one line of log: its level is one of RIALTO_ERROR and so on, its target the plugin's name, say. */
    void (*log)(void *context, uint32_t level, rialto_str target, rialto_str message);
    /* The table of a further service by its id, valid for the life of the process; null if the host does not have it. */
    const void *(*query_extension)(void *context, rialto_str id);
} rialto_host_table;

/* Dense, row-major tensor bytes that are lent for one call. */
typedef struct rialto_tensor {
    /* One of RIALTO_DTYPE_BF16 and so on. */
    uint32_t dtype;
    /* How many extents there are. */
    uint32_t rank;
    /* The extents in elements, outermost first; may be null if rank is 0. */
    const uint64_t *extents;
    /* The bytes: little-endian elements, aligned to nothing; may be null if len is 0. */
    const uint8_t *data;
    /* How many bytes there are: the product of the extents times the element size, which both sides check. */
    uint64_t len;
} rialto_tensor;

/* Tensors. */
typedef struct rialto_tensors {
    const rialto_tensor *data;
    uint64_t len;
} rialto_tensors;

/* Bytes that are handed over: the side that receives them releases them, in Rust by dropping this value. */
typedef struct rialto_owned {
    /* First byte; null if there are none. */
    uint8_t *data;
    /* How many there are. */
    uint64_t len;
    /* Whatever release needs: the capacity in Rust, anything in C. */
    void *context;
    /* Frees the bytes; null if nothing has to be freed. */
    void (*release)(uint8_t *data, uint64_t len, void *context);
} rialto_owned;

/* What every call returns. */
typedef struct rialto_status {
    /* One of RIALTO_OK and so on: 0 is done. */
    uint32_t code;
    /* Why not, if it is not done: UTF-8, either a JSON object {"slug", "message", "help"} or plain text. */
    rialto_owned detail;
} rialto_status;

/* The entries of bridge/1, none of them null. */
typedef struct rialto_bridge_table {
    /* Who the plugin is and what it serves. */
    rialto_status (*describe)(void *instance, rialto_bytes request, rialto_owned *reply);
    /* Whether it takes a config. */
    rialto_status (*claim)(void *instance, rialto_bytes request, rialto_owned *reply);
    /* config.json to a model spec. */
    rialto_status (*map_config)(void *instance, rialto_bytes request, rialto_owned *reply);
    /* What must change in a config so that it describes a model spec. */
    rialto_status (*unmap_config)(void *instance, rialto_bytes request, rialto_owned *reply);
    /* The rules that join tensors and params. */
    rialto_status (*weight_map)(void *instance, rialto_bytes request, rialto_owned *reply);
    /* How params are cut over a mesh. */
    rialto_status (*placement)(void *instance, rialto_bytes request, rialto_owned *reply);
    /* Which pipeline stage holds which layers. */
    rialto_status (*pipeline_layout)(void *instance, rialto_bytes request, rialto_owned *reply);
    /* The encodings of the model's tensors. */
    rialto_status (*codecs)(void *instance, rialto_bytes request, rialto_owned *reply);
    /* The table of an extension by its id; null if the plugin does not have it. */
    const void *(*query_extension)(void *instance, rialto_str id);
    /* Ends the instance. */
    rialto_status (*release)(void *instance);
} rialto_bridge_table;

/* An instance and the table that speaks for it: what the plugin's open fills in. */
typedef struct rialto_bridge_handle {
    /* First argument of every entry; opaque, may be null. */
    void *instance;
    /* The entries; valid for the life of the process. */
    const rialto_bridge_table *table;
} rialto_bridge_handle;

/* What a plugin exports as rialto_plugin_v1. */
typedef struct rialto_plugin_decl {
    /* RIALTO_MAGIC, without a NUL. */
    char magic[8];
    /* Size of this struct in bytes. */
    uint32_t struct_size;
    /* RIALTO_ABI_MAJOR of the header or crate that the plugin was built with. */
    uint32_t abi_major;
    /* RIALTO_ABI_MINOR of the same. */
    uint32_t abi_minor;
    /* How its panics end: one of RIALTO_PANIC_NONE and so on. */
    uint32_t panic_strategy;
    /* Target triple: pointer width and endianness follow from it. */
    char target[64];
    /* Version of the rialto-abi crate; empty in C. */
    char abi_crate_version[32];
    /* What made layout (a name and its version); empty in C. */
    char layout_version[32];
    /* Name of the plugin's package, UTF-8. */
    char name[64];
    /* Its version, UTF-8. */
    char version[64];
    /* The layout report (of Rust's types); null in C, or wherever else none is made. */
    const void *layout;
    /* Makes an instance. */
    rialto_status (*open)(const rialto_host_table *host, rialto_bridge_handle *handle);
} rialto_plugin_decl;

/* dequantize/1: decodes tensors that the Hugging Face side stores encoded. */
typedef struct rialto_dequantize_table {
    /* Decodes one tensor, or whole blocks of one, with the companions of those blocks in the order of the codec's list. */
    rialto_status (*dequantize)(void *instance, rialto_str codec, rialto_tensor tensor, rialto_tensors companions, rialto_bytes_mut out);
} rialto_dequantize_table;

/* program/1: says what the forward pass of a model is. */
typedef struct rialto_program_table {
    /* The forward pass of a model, as a document like those of bridge/1. */
    rialto_status (*program)(void *instance, rialto_bytes request, rialto_owned *reply);
} rialto_program_table;

/* The one symbol that a plugin defines. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
extern const rialto_plugin_decl rialto_plugin_v1;

#ifdef __cplusplus
}
#endif

#endif
