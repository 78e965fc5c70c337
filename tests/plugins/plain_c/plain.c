/* A plugin in plain C: one matrix, answered from constant documents. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "rialto.h"

static const rialto_host_table *host;

static rialto_status done(void) {
    rialto_status status = {RIALTO_OK, {NULL, 0, NULL, NULL}};
    return status;
}

/* Constant text is handed over without a release function. */
static rialto_owned constant(const char *text) {
    rialto_owned owned = {(uint8_t *)text, strlen(text), NULL, NULL};
    return owned;
}

static void free_bytes(uint8_t *data, uint64_t len, void *context) {
    (void)len;
    (void)context;
    free(data);
}

static rialto_status answer(rialto_owned *reply, const char *document) {
    *reply = constant(document);
    return done();
}

static rialto_status describe(void *instance, rialto_bytes request, rialto_owned *reply) {
    (void)instance, (void)request;
    return answer(reply, "{\"schema\": 1, \"requires\": [], \"body\": {\"name\": \"plain\", \"version\": \"1.0\", "
                         "\"summary\": \"One matrix, in C.\", \"architectures\": [\"PlainForCausalLM\"], "
                         "\"releases\": [\"plain-1\"]}}");
}

static rialto_status claim(void *instance, rialto_bytes request, rialto_owned *reply) {
    (void)instance;
    const char name[] = "PlainForCausalLM";
    for (uint64_t at = 0; at + sizeof name - 1 <= request.len; at++)
        if (memcmp(request.data + at, name, sizeof name - 1) == 0)
            return answer(reply, "{\"schema\": 1, \"body\": {\"claim\": \"yes\", \"release\": \"plain-1\", "
                                 "\"reason\": \"its architecture\"}}");
    return answer(reply, "{\"schema\": 1, \"body\": {\"claim\": \"no\", \"reason\": \"not PlainForCausalLM\"}}");
}

static rialto_status map_config(void *instance, rialto_bytes request, rialto_owned *reply) {
    (void)instance, (void)request;
    const rialto_str target = RIALTO_TEXT("plain"), message = RIALTO_TEXT("mapping in C");
    host->log(host->context, RIALTO_INFO, target, message);
    return answer(reply, "{\"schema\": 1, \"body\": {\"release\": \"plain-1\", \"architecture\": \"PlainForCausalLM\", "
                         "\"dims\": {\"layers\": 1, \"hidden\": 2, \"vocab\": 0, \"mtp_layers\": 0, "
                         "\"mtp_layers_dropped\": 0}, \"provider_target\": \"plain.Provider\", "
                         "\"provider\": {\"hidden_size\": 2}}}");
}

/* An error in plain text, in memory of its own. */
static rialto_status unmap_config(void *instance, rialto_bytes request, rialto_owned *reply) {
    (void)instance, (void)request, (void)reply;
    const char text[] = "a plain config cannot be made";
    rialto_status status = {RIALTO_UNSUPPORTED, {malloc(sizeof text), sizeof text - 1, NULL, free_bytes}};
    memcpy(status.detail.data, text, sizeof text);
    return status;
}

static rialto_status weight_map(void *instance, rialto_bytes request, rialto_owned *reply) {
    (void)instance, (void)request;
    return answer(reply, "{\"schema\": 1, \"requires\": [\"rule/map/1\"], \"body\": {\"rules\": [{\"rule\": \"map\", "
                         "\"name\": \"matrix\", \"group\": \"mlp\", \"param\": \"decoder.weight\", \"shape\": [2, 2], "
                         "\"dtype\": {\"accepts\": [\"BF16\"]}, \"parts\": [{\"tensor\": \"model.weight\", "
                         "\"shape\": [2, 2]}]}]}}");
}

/* A document that needs what no reader has yet. */
static rialto_status placement(void *instance, rialto_bytes request, rialto_owned *reply) {
    (void)instance, (void)request;
    return answer(reply, "{\"schema\": 1, \"requires\": [\"placement/spiral/1\"], \"body\": null}");
}

/* A document that is none. */
static rialto_status pipeline_layout(void *instance, rialto_bytes request, rialto_owned *reply) {
    (void)instance, (void)request;
    return answer(reply, "not JSON");
}

static rialto_status codecs(void *instance, rialto_bytes request, rialto_owned *reply) {
    (void)instance, (void)request;
    return answer(reply, "{\"schema\": 1, \"body\": []}");
}

static const void *query_extension(void *instance, rialto_str id) {
    (void)instance, (void)id;
    return NULL;
}

static rialto_status release(void *instance) {
    (void)instance;
    return done();
}

static const rialto_bridge_table TABLE = {describe,  claim,           map_config, unmap_config,    weight_map,
                                          placement, pipeline_layout, codecs,     query_extension, release};

static rialto_status open_plain(const rialto_host_table *table, rialto_bridge_handle *handle) {
    host = table;
    /* No host has it, and every host can be asked. */
    const rialto_str unknown = RIALTO_TEXT("spiral/1");
    if (host->query_extension(host->context, unknown) != NULL) {
        rialto_status status = {RIALTO_INTERNAL, {NULL, 0, NULL, NULL}};
        return status;
    }
    handle->instance = NULL;
    handle->table = &TABLE;
    return done();
}

const rialto_plugin_decl rialto_plugin_v1 = {
    .magic = RIALTO_MAGIC,
    .struct_size = sizeof(rialto_plugin_decl),
    .abi_major = RIALTO_ABI_MAJOR,
    .abi_minor = RIALTO_ABI_MINOR,
    .panic_strategy = RIALTO_PANIC_NONE,
    .target = RIALTO_TARGET,
    .name = "plain",
    .version = "1.0",
    .layout = NULL,
    .open = open_plain,
};
