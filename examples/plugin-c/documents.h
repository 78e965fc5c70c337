/* Documents as a plugin in C reads, writes and refuses them. No part of the contract: any JSON library would do. */
#ifndef TOY_DENSE_DOCUMENTS_H
#define TOY_DENSE_DOCUMENTS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rialto.h"

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

#endif
