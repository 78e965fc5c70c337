/* A toy dense model, mapped in C: an embedding, in each layer gate, up and down, a final norm. README.md says how to build it.
 *
 * First the little JSON that it takes, for which any library would do; then the model. It keeps no state: what it read from a config
 * goes out in the spec's `extra` and comes back with every later request. */
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rialto.h"

/* ---- Documents: reading, writing and refusing them ---- */

/* A text that grows, and is lost if memory runs out. */
typedef struct {
    char *bytes;
    size_t len, room;
    bool is_lost;
} text;

static void add(text *to, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    const size_t more = (size_t)vsnprintf(NULL, 0, format, arguments) + 1;
    if (!to->is_lost && to->len + more > to->room) {
        to->room = 2 * (to->len + more);
        char *const grown = realloc(to->bytes, to->room);
        to->is_lost = grown == NULL;
        to->bytes = to->is_lost ? to->bytes : grown;
    }
    if (!to->is_lost) to->len += (size_t)vsnprintf(to->bytes + to->len, more, format, again);
    va_end(again);
    va_end(arguments);
}

/* A piece of JSON, from `at` up to `end`. What is absent is empty. */
typedef struct {
    const char *at, *end;
} json;

/* Whether the next character is one of these. */
static bool begins(json rest, const char *with) {
    return rest.at < rest.end && memchr(with, *rest.at, strlen(with)) != NULL;
}

/* Takes what stands before the next comma, colon or closing bracket of this level, without the space around it. */
static json take(json *rest) {
    static const char SPACE[] = " \n\r\t";
    while (begins(*rest, SPACE)) rest->at++;
    json found = *rest;
    bool is_string = false;
    for (int depth = 0; rest->at < rest->end; rest->at++) {
        if (begins(*rest, "\"")) {
            is_string = !is_string;
        } else if (is_string) {
            /* An escaped character ends nothing. */
            rest->at += begins(*rest, "\\") && rest->at + 1 < rest->end;
        } else if (begins(*rest, "{[")) {
            depth++;
        } else if (depth > 0) {
            depth -= begins(*rest, "]}");
        } else if (begins(*rest, ",:]}")) {
            break;
        }
    }
    found.end = rest->at;
    while (found.end > found.at && memchr(SPACE, found.end[-1], sizeof SPACE - 1) != NULL) found.end--;
    return found;
}

/* Takes the next member off an object. */
static bool next(json *object, json *key, json *value) {
    if (!begins(*object, "{,")) return false;
    object->at++;
    *key = take(object);
    if (!begins(*object, ":")) return false;
    object->at++;
    *value = take(object);
    return true;
}

static bool is_empty(json value) { return value.at == value.end; }

static size_t length(json value) { return (size_t)(value.end - value.at); }

static bool is(json value, const char *written) {
    return length(value) == strlen(written) && memcmp(value.at, written, length(value)) == 0;
}

static json member(json object, const char *name) {
    const json absent = {"", ""};
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\"", name);
    for (json key, value; next(&object, &key, &value);)
        if (is(key, quoted)) return value;
    return absent;
}

/* A whole number from 1 to `most`, else 0. */
static long number(json value, long most) {
    long sum = 0;
    for (; !is_empty(value); value.at++) {
        if (*value.at < '0' || *value.at > '9' || sum > most) return 0;
        sum = 10 * sum + (*value.at - '0');
    }
    return sum <= most ? sum : 0;
}

/* The JSON that a JSON string holds, in memory that the caller frees through `at`; null if there is none. Control characters
 * become spaces, and what is escaped as a number beyond ASCII `?`. */
static json unescaped(json string) {
    char *const room = malloc(length(string) + 1);
    char *to = room;
    for (size_t at = 1; room != NULL && at + 1 < length(string); at++) {
        char c = string.at[at];
        if (c == '\\') {
            c = string.at[++at];
            if (c == 'u' && at + 5 < length(string)) {
                char digits[5] = {0};
                memcpy(digits, string.at + at + 1, 4);
                at += 4;
                const long code = strtol(digits, NULL, 16);
                c = code >= 0 && code < 128 ? (char)code : '?';
            } else if (memchr("bfnrt", c, 5) != NULL) {
                c = ' ';
            }
        }
        *to++ = c;
    }
    const json made = {room, to};
    return made;
}

static const rialto_status DONE; /* All zero. */

/* Memory goes back to the side that made it, through this function. */
static void free_bytes(uint8_t *data, uint64_t len, void *context) {
    (void)len, (void)context;
    free(data);
}

static rialto_owned handed_over(text made) {
    const rialto_owned owned = {(uint8_t *)made.bytes, made.len, NULL, free_bytes};
    return owned;
}

/* The words stand in a JSON string: they bring no quotes or backslashes of their own. */
static rialto_status refused(uint32_t code, const char *slug, const char *format, ...) {
    char words[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    text detail = {0};
    add(&detail, "{\"slug\": \"%s\", \"message\": \"%s\"}", slug, words);
    const rialto_status status = {code, handed_over(detail)};
    return status;
}

/* The body of a request, and the config in it: its `config` or its `reference`, if there is one. */
typedef struct {
    json body, config;
} question;

/* Reads a request's envelope, has its body and the config in it answered, and writes the reply's. */
static rialto_status answer(rialto_bytes request, rialto_owned *reply, const char *requires,
                            rialto_status (*tell)(const question *asked, text *out)) {
    const char *const begin = request.data == NULL ? "" : (const char *)request.data;
    json document = {begin, begin + request.len};
    document = take(&document);
    if (!is(member(document, "schema"), "1"))
        return refused(RIALTO_CORRUPT, "document/unreadable", "the request has another schema than 1");
    /* Nothing beyond the plain requests is known here: what a request requires is refused by name. */
    json needs = member(document, "requires");
    needs.at += begins(needs, "[");
    const json need = take(&needs);
    if (length(need) > 2)
        return refused(RIALTO_UNSUPPORTED, "document/requirement", "the request requires %.*s, which this plugin does not have",
                       (int)length(need) - 2, need.at + 1);
    const json body = member(document, "body"), own = member(body, "config");
    const json config = unescaped(is_empty(own) ? member(body, "reference") : own);
    const question asked = {body, config};
    text made = {0};
    add(&made, "{\"schema\": 1, \"requires\": [%s], \"body\": ", requires);
    rialto_status status = tell(&asked, &made);
    add(&made, "}");
    if (status.code == RIALTO_OK && (made.is_lost || config.at == NULL)) status.code = RIALTO_MEMORY;
    free((char *)config.at);
    if (status.code == RIALTO_OK)
        *reply = handed_over(made);
    else
        free(made.bytes);
    return status;
}

/* An entry of the bridge table, answered by the function `tell_` and its name. `requires` is what its reader must know. */
#define ENTRY(name, requires)                                                              \
    static rialto_status name(void *instance, rialto_bytes request, rialto_owned *reply) { \
        (void)instance;                                                                    \
        return answer(request, reply, requires, tell_##name);                              \
    }

/* What such a function says if it is always the same. */
#define CONSTANT(name, document)                                            \
    static rialto_status tell_##name(const question *asked, text *out) { \
        (void)asked;                                                        \
        add(out, "%s", document);                                           \
        return DONE;                                                        \
    }

/* The last two entries of a plugin that has no extensions and no state. */
static const void *no_extension(void *instance, rialto_str id) {
    (void)instance, (void)id;
    return NULL;
}

static rialto_status no_release(void *instance) {
    (void)instance;
    return DONE;
}

/* ---- The model ---- */

#define ARCHITECTURE "ToyDenseForCausalLM"

enum { LAYERS, HIDDEN, FFN, VOCAB, KEYS, MOST = 1 << 20 };
static const char *const OURS[KEYS] = {"num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size"};
static const char *const MEGATRON[KEYS] = {"num_layers", "hidden_size", "ffn_hidden_size", "vocab_size"};

/* Reads the numbers, which stand under the same keys in a config and in our `extra`. */
static rialto_status read_model(json from, long model[KEYS]) {
    for (int key = 0; key < KEYS; key++) {
        const json value = member(from, OURS[key]);
        model[key] = number(value, MOST);
        if (model[key] > 0) continue;
        /* A text of the config's may have quotes, which would end the message. */
        const char *const found = is_empty(value) ? "absent" : begins(value, "\"[{") ? "no number" : value.at;
        const int shown = found == value.at ? (int)length(value) : (int)strlen(found);
        return refused(RIALTO_UNSUPPORTED, "toy-dense/config", "config.json: %s is %.*s, expected a whole number from 1 to %d",
                       OURS[key], shown, found, MOST);
    }
    return DONE;
}

static rialto_status read_spec(const question *asked, long model[KEYS]) {
    return read_model(member(member(asked->body, "spec"), "extra"), model);
}

CONSTANT(describe, "{\"name\": \"toy-dense\", \"version\": \"1.0\", \"summary\": \"A toy dense model, in C.\", "
                   "\"architectures\": [\"" ARCHITECTURE "\"], \"releases\": [\"toy-dense-1\"]}")

static rialto_status tell_claim(const question *asked, text *out) {
    json names = member(asked->config, "architectures");
    bool is_ours = false;
    while (!is_ours && begins(names, "[,")) {
        names.at++;
        is_ours = is(take(&names), "\"" ARCHITECTURE "\"");
    }
    if (is_ours)
        add(out, "{\"claim\": \"yes\", \"release\": \"toy-dense-1\", \"reason\": \"it names " ARCHITECTURE "\"}");
    else
        add(out, "{\"claim\": \"no\", \"reason\": \"architectures does not name " ARCHITECTURE "\"}");
    return DONE;
}

static void add_numbers(text *out, const char *name, const char *const keys[KEYS], const long model[KEYS]) {
    add(out, ", \"%s\": {", name);
    for (int key = 0; key < KEYS; key++) add(out, "%s\"%s\": %ld", key ? ", " : "", keys[key], model[key]);
    add(out, "}");
}

static rialto_status tell_map_config(const question *asked, text *out) {
    long model[KEYS];
    const rialto_status status = read_model(asked->config, model);
    if (status.code != RIALTO_OK) return status;
    add(out, "{\"release\": \"toy-dense-1\", \"architecture\": \"" ARCHITECTURE "\", "
             "\"dims\": {\"layers\": %ld, \"hidden\": %ld, \"vocab\": %ld, \"mtp_layers\": 0, \"mtp_layers_dropped\": 0}, "
             "\"provider_target\": \"toy_dense.ToyDenseProvider\"", model[LAYERS], model[HIDDEN], model[VOCAB]);
    add_numbers(out, "provider", MEGATRON, model);
    add_numbers(out, "extra", OURS, model);
    add(out, ", \"unread_keys\": [");
    const char *comma = "";
    json left = asked->config;
    for (json key, value; next(&left, &key, &value);) {
        bool is_read = is(key, "\"architectures\"");
        const json name = {key.at + 1, key.end - 1};
        for (int of = 0; of < KEYS; of++) is_read = is_read || (length(key) > 2 && is(name, OURS[of]));
        if (is_read) continue;
        add(out, "%s%.*s", comma, (int)length(key), key.at);
        comma = ", ";
    }
    add(out, "]}");
    return DONE;
}

static rialto_status tell_unmap_config(const question *asked, text *out) {
    long model[KEYS];
    const rialto_status status = read_spec(asked, model);
    if (status.code != RIALTO_OK) return status;
    const char *comma = "[";
    for (int key = 0; key < KEYS; key++) {
        if (number(member(asked->config, OURS[key]), MOST) == model[key]) continue;
        add(out, "%s{\"edit\": \"set\", \"key\": \"%s\", \"value\": %ld}", comma, OURS[key], model[key]);
        comma = ", ";
    }
    add(out, *comma == '[' ? "[]" : "]");
    return DONE;
}

static void add_shape(text *out, long rows, long columns) {
    add(out, columns ? "\"shape\": [%ld, %ld]" : "\"shape\": [%ld]", rows, columns);
}

/* A rule up to its first tensor, for every layer if there are any: Megatron stacks layers that are alike. */
static void add_rule(text *out, const char *name, const char *param, long layers, long rows, long columns) {
    add(out, "{\"rule\": \"map\", \"name\": \"%s\", \"group\": \"dense\", \"param\": \"%s\", \"scope\": [", name, param);
    for (long i = 0; i < layers; i++) add(out, "%s%ld", i ? ", " : "{\"name\": \"i\", \"values\": [", i);
    add(out, layers ? "]}], \"stack\": \"i\", " : "], ");
    add_shape(out, rows, columns);
    add(out, ", \"dtype\": {\"accepts\": [\"BF16\", \"F32\"]}, \"parts\": [");
}

/* A tensor whose first row is this one of the param. */
static void add_part(text *out, const char *tensor, long rows, long columns, long row, const char *end) {
    add(out, "{\"tensor\": \"model.%s.weight\", ", tensor);
    add_shape(out, rows, columns);
    if (row > 0) add(out, ", \"at\": [\"%ld\", \"0\"]", row);
    add(out, "}%s", end);
}

static rialto_status tell_weight_map(const question *asked, text *out) {
    long model[KEYS];
    const rialto_status status = read_spec(asked, model);
    if (status.code != RIALTO_OK) return status;
    const long layers = model[LAYERS], hidden = model[HIDDEN], ffn = model[FFN];
    add(out, "{\"rules\": [");
    add_rule(out, "embedding", "embedding.word_embeddings.weight", 0, model[VOCAB], hidden);
    add_part(out, "embed_tokens", model[VOCAB], hidden, 0, "]}, ");
    add_rule(out, "gate and up", "decoder.layers.{i}.mlp.linear_fc1.weight", layers, 2 * ffn, hidden);
    add_part(out, "layers.{i}.mlp.gate_proj", ffn, hidden, 0, ", ");
    add_part(out, "layers.{i}.mlp.up_proj", ffn, hidden, ffn, "]}, ");
    add_rule(out, "down", "decoder.layers.{i}.mlp.linear_fc2.weight", layers, hidden, ffn);
    add_part(out, "layers.{i}.mlp.down_proj", hidden, ffn, 0, "]}, ");
    add_rule(out, "final norm", "decoder.final_layernorm.weight", 0, hidden, 0);
    add_part(out, "norm", hidden, 0, 0, "]}]}");
    return DONE;
}

/* Each rank has its rows of gate and its rows of up: two blocks, each cut over the ranks. */
CONSTANT(placement, "{\"rules\": ["
    "{\"param\": \"embedding.*\", \"cuts\": [{\"axis\": 0, \"over\": \"tp\", \"of\": \"rows of the vocabulary\"}]}, "
    "{\"param\": \"*.linear_fc1.weight\", \"cuts\": [{\"axis\": 0, \"over\": \"tp\", \"blocks\": 2, \"of\": \"channels\"}]}, "
    "{\"param\": \"*.linear_fc2.weight\", \"cuts\": [{\"axis\": 1, \"over\": \"tp\", \"of\": \"channels\"}]}, "
    "{\"param\": \"decoder.final_layernorm.weight\"}]}")

static rialto_status tell_pipeline_layout(const question *asked, text *out) {
    long model[KEYS];
    const rialto_status status = read_spec(asked, model);
    if (status.code != RIALTO_OK) return status;
    const json request = member(asked->body, "request");
    const long layers = model[LAYERS], stages = number(member(member(request, "mesh"), "pp"), MOST);
    if (!is(member(request, "stages"), "\"family\""))
        return refused(RIALTO_UNSUPPORTED, "bridge/pipeline", "--pipeline is not read here; valid for this model: equal stages");
    if (stages == 0 || layers % stages != 0) {
        char valid[128];
        int len = 0;
        for (long fits = 1; fits <= layers && len < 100; fits++)
            if (layers % fits == 0) len += snprintf(valid + len, sizeof valid - (size_t)len, fits > 1 ? ", %ld" : "%ld", fits);
        return refused(RIALTO_UNSUPPORTED, "bridge/pipeline", "--pp %ld does not divide %ld layers; valid for this model: %s",
                       stages, layers, valid);
    }
    const long each = layers / stages;
    for (long stage = 0; stage < stages; stage++) {
        add(out, "%s{\"first_layer\": %ld, \"layers\": %ld, \"physical_layers\": %ld, \"mtp_layers\": 0, \"params\": [",
            stage ? ", " : "{\"stages\": [", stage * each, each, each);
        if (stage == 0) add(out, "\"embedding.*\", ");
        for (long layer = stage * each; layer < (stage + 1) * each; layer++)
            add(out, "%s\"decoder.layers.%ld.*\"", layer > stage * each ? ", " : "", layer);
        if (stage + 1 == stages) add(out, ", \"decoder.final_layernorm.*\"");
        add(out, "]}");
    }
    add(out, "], \"provider\": {}}");
    return DONE;
}

CONSTANT(codecs, "[]")

ENTRY(describe, "")
ENTRY(claim, "")
ENTRY(map_config, "")
ENTRY(unmap_config, "")
ENTRY(weight_map, "\"rule/map/1\"")
ENTRY(placement, "")
ENTRY(pipeline_layout, "")
ENTRY(codecs, "")

static const rialto_bridge_table TABLE = {describe,  claim,           map_config, unmap_config, weight_map,
                                          placement, pipeline_layout, codecs,     no_extension, no_release};

static rialto_status open_toy(const rialto_host_table *host, rialto_bridge_handle *handle) {
    (void)host;
    handle->instance = NULL;
    handle->table = &TABLE;
    return DONE;
}

const rialto_plugin_decl rialto_plugin_v1 = {
    .magic = RIALTO_MAGIC,
    .struct_size = sizeof(rialto_plugin_decl),
    .abi_major = RIALTO_ABI_MAJOR,
    .abi_minor = RIALTO_ABI_MINOR,
    .panic_strategy = RIALTO_PANIC_NONE,
    .target = RIALTO_TARGET,
    .name = "toy-dense",
    .version = "1.0",
    .open = open_toy,
};
