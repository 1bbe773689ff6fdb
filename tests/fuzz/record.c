/* record.c - writes the corpus the fuzz targets start from: `record FOLDER` makes
 * FOLDER/frames, /handshake and /values out of conversations of real workers, and
 * FOLDER/command_line out of what people write. */
#include <sys/stat.h>

#include "../c/rpc_sessions.h"

static const char *folder;

static void write_input(const char *target, const char *name, const char *who,
                        const void *head, size_t head_len, const void *bytes, size_t n)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, target);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/%s/%s-%s", folder, target, name, who);
    FILE *f = fopen(path, "wb");
    if (!f) {
        perror(path);
        exit(1);
    }
    if (head_len) fwrite(head, 1, head_len, f);
    fwrite(bytes, 1, n, f);
    if (fclose(f) != 0) {
        perror(path);
        exit(1);
    }
}

/* The body of each message that lies whole in the stream. */
static void write_bodies(const char *name, const char *who, const stream *s)
{
    int count = 0;
    for (size_t at = s->handshake; at + RLE_FRAME_HEADER <= s->n;) {
        const uint8_t *head = s->bytes + at;
        size_t payload = rle_get32(head + 16), values = rle_get32(head + 20);
        at += RLE_FRAME_HEADER + payload;
        if (!payload || payload != rle_get64(head + 24)) continue;
        char label[80];
        snprintf(label, sizeof label, "%s-%d", name, count++);
        bool error = head[5] == RLE_FRAME_ERROR;
        /* Of a call what stands behind its head, as if it were a result. */
        const uint8_t *body = head + RLE_FRAME_HEADER;
        size_t skip = head[5] == RLE_FRAME_CALL ? 10 + (size_t)body[9] : 0;
        uint8_t before[3] = {(uint8_t)(error ? 128 : rle_get16(head + 52)),
                             (uint8_t)values, (uint8_t)(values >> 8)};
        write_input("values", label, who, before, 3, body, payload);
        if (!skip || rle_get16(head + 52)) continue;
        rle_put16(before + 1, (uint16_t)(values - skip));
        snprintf(label, sizeof label, "%s-%d", name, count++);
        write_input("values", label, who, before, 3, body + skip, payload - skip);
    }
}

static void write_words(void)
{
    static const struct {
        const char *name, *words;
        size_t n;
    } lines[] = {
#define LINE(name, words) {name, words, sizeof(words) - 1}
        LINE("script", "train.lua\0--episodes=500"),
        LINE("texts",
             "-e\0print(1)\0-lx=rlengine\0-i\0-v\0-E\0--memory-report\0--\0a.lua"),
        LINE("stdin", "-\0a"),
        LINE("wrong", "--version\0-e"),
        LINE("unix", "unix:/run/user/1000/rlengine/t.sock"),
        LINE("tcp", "tcp://127.0.0.1:29500\0[::1]:0\0tcp://[fe80::1]:65535\0"
                    "10.0.0.5:1"),
#undef LINE
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        write_input("command_line", lines[i].name, "words", NULL, 0, lines[i].words,
                    lines[i].n);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: record FOLDER\n");
        return 2;
    }
    folder = argv[1];
    mkdir(folder, 0777);
    rle_log_set_sink(wire_no_line, NULL);
    write_words();
    for (int i = 0; i < TALKS; i++) {
        stream s[2];
        record_talk(i, false, s);
        for (int by_b = 0; by_b < 2; by_b++) {
            const char *who = by_b ? "b" : "a";
            stream *one = &s[by_b];
            uint8_t before[2] = {
                WIRE_MEND_HEADER | WIRE_MEND_BODY | WIRE_MEND_INCARNATION, 0};
            if (one->n - one->handshake <= 60000)
                write_input("frames", talks[i].name, who, before, 2,
                            one->bytes + one->handshake, one->n - one->handshake);
            /* b began the connection, so a hears what b says. */
            before[0] =
                (uint8_t)((by_b ? 0 : 1) | 2 | (WIRE_MEND_HEADER | WIRE_MEND_BODY) << 2);
            size_t n = one->n < 4000 ? one->n : one->handshake;
            write_input("handshake", talks[i].name, who, before, 2, one->bytes, n);
            write_bodies(talks[i].name, who, one);
            free(one->bytes);
        }
    }
    return 0;
}
