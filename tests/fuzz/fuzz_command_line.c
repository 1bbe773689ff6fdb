/* fuzz_command_line.c - words as a command line of the program, and as what users write
 * in options of remote calls: addresses and names. Words are separated by zeros. */
#include <arpa/inet.h>

#include "../c/rpc_wire.h"
#include "cli/options.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WORDS = 64 };

static void check_options(int argc, char **argv)
{
    rle_cli_options o = rle_cli_parse_options(argc, argv);
    must(o.script >= 1 && o.script <= argc);
    if (o.wrong) {
        int at = 1;
        while (at < argc && argv[at] != o.wrong) at++;
        must(at < argc);
        return;
    }
    /* Run as the program does: every -e and -l before the script has its value. */
    for (int i = 1; i < o.script; i++) {
        must(argv[i][0] == '-');
        if (strcmp(argv[i], "--") == 0) break;
        if (argv[i][1] == 'e' || argv[i][1] == 'l')
            must(rle_cli_option_value(argv, &i) != NULL);
    }
}

/* A host that is no number would be looked up. */
static bool is_looked_up(const char *text)
{
    const char *host = strncmp(text, "tcp://", 6) == 0 ? text + 6 : text;
    const char *colon = strrchr(host, ':');
    char number[256];
    uint8_t address[16];
    if (strncmp(text, "unix:", 5) == 0 || !colon || colon == host) return false;
    size_t n = (size_t)(colon - host);
    if (n >= sizeof number) return false;
    bool bracketed = n > 1 && host[0] == '[' && host[n - 1] == ']';
    snprintf(number, sizeof number, "%.*s", (int)(bracketed ? n - 2 : n),
             bracketed ? host + 1 : host);
    return inet_pton(AF_INET, number, address) != 1 &&
           inet_pton(AF_INET6, number, address) != 1;
}

static void check_address(const char *text)
{
    rle_address a, again;
    if (is_looked_up(text)) return;
    if (rle_address_parse(text, &a) != RLE_OK) {
        must(strlen(rle_message()) > 0);
        return;
    }
    must(strlen(a.text) < sizeof a.text && strlen(a.shown) < sizeof a.shown);
    /* What is shown to others leads to the same place. */
    must(rle_address_parse(a.text, &again) == RLE_OK);
    must(a.len == again.len && memcmp(&a.sa, &again.sa, a.len) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *argv[WORDS + 2] = {(char *)"rlengine"};
    int argc = 1;
    for (size_t at = 0; at < size && argc <= WORDS;) {
        size_t n = strnlen((const char *)data + at, size - at);
        argv[argc] = malloc(n + 1);
        memcpy(argv[argc], data + at, n);
        argv[argc++][n] = 0;
        at += n + 1;
    }
    check_options(argc, argv);
    for (int i = 1; i < argc; i++) {
        check_address(argv[i]);
        size_t n = strlen(argv[i]);
        if (rle_name_ok(argv[i], n))
            must(n >= 1 && n <= RLE_NAME_MAX && !strchr(argv[i], '/'));
        free(argv[i]);
    }
    return 0;
}
