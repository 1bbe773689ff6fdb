/* proxy.c - a line that can be broken: forwards connections between two workers and does
 * to them what it is told on standard input.
 *
 *   fault_proxy LISTEN TARGET
 *
 * Addresses are unix:/path or tcp://127.0.0.1:29500; port 0 picks one. It prints
 * "listening ADDRESS", then answers every command with one line, "ok ..." or "error ...",
 * and ends with its standard input. DIR is up (from who connects to TARGET), down or both;
 * TYPE the name of a frame (CALL), any, or stream for bytes of a connection counted from
 * its beginning. What concerns one frame happens once, to the first that fits.
 *
 *   hold DIR            neither read nor write
 *   swallow DIR         read and forget, the end of the stream too: half-open
 *   release DIR         neither of these any more
 *   rate DIR N          forward N bytes a second; 0: as they come
 *   dribble DIR MS      forward a byte every MS milliseconds; 0: as they come
 *   delay DIR MS JITTER LOSE
 *                       forward late, by MS and up to JITTER more or less, and LOSE per
 *                       cent of the pieces 200 ms later still, as if they had been lost
 *   cut DIR TYPE K [SKIP]
 *                       end the connection behind byte K of the frame (or of it all)
 *   flip DIR TYPE BIT [SKIP]
 *                       change one bit of the frame
 *   drop DIR TYPE COUNT so many frames never arrive
 *   reorder DIR COUNT   the next COUNT frames arrive in reverse order
 *   record DIR          keep the frames from now on
 *   replay DIR          send once more what was kept
 *   refuse              new connections are refused
 *   accept              and taken again
 *   close, reset        end every connection, with FIN or, where there is one, RST
 *   clear               none of the above any more
 *   stat                key=value: links, fired, up, down (bytes), up.CALL (frames) ...
 *
 * One thread, poll(2). Everything lives until the process ends. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#include "proxy_io.h"
#include "rpc/frame.h"

enum { UP, DOWN, WAYS };
enum { TYPE_STREAM = -1, TYPE_ANY = 0 };
enum { LINKS = 1024, READ_SIZE = 64 << 10, OUT_MAX = 4 << 20, KEEP_MAX = 64 };

/* One direction of one connection. */
typedef struct way {
    int from, to;
    bool eof, ended; /* read to its end; the other side was told */
    bool opaque;     /* no frames: TLS, or some other protocol */
    buffer in, out;
    size_t frame_left, frame_at;
    bool dropped, kept; /* the frame being read: not forwarded; collected in `held` */
    size_t cut_at;      /* bytes of this frame before the end; SIZE_MAX: none */
    size_t flip_at;     /* bit of this frame; SIZE_MAX: none */
    uint64_t bytes;     /* forwarded */
    double allowance;
    int64_t refilled;
    uint64_t sent; /* of `bytes` */
    marks late;
    buffer held[KEEP_MAX];
    int held_count, held_wanted;
} way;

typedef struct link {
    bool used, dying;
    int64_t dead_at;
    way way[WAYS];
} link_t;

/* Something that happens to one frame. */
typedef struct shot {
    bool armed;
    int type;
    size_t at;
    long skip;
} shot;

static struct rules {
    bool hold, swallow, record;
    double rate;              /* bytes a second; 0 = no limit */
    long delay, jitter, lose; /* milliseconds, per cent */
    double quantum;           /* bytes written at once when limited */
    shot cut, flip;
    int drop_type;
    long drop;
    int reorder;
    buffer recorded;
} rules[WAYS];

static link_t links[LINKS];
static int listen_fd = -1;
static struct sockaddr_storage listen_at, target_at;
static socklen_t listen_len, target_len;
static uint64_t fired, bytes_total[WAYS], frames[WAYS][RLE_FRAME_TYPES + 1];

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- frames ---- */

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
           (uint32_t)p[3] << 24;
}

/* Does it happen to the frame of that type that begins now? Then it will not happen
 * again. */
static bool hit(shot *s, int type, size_t *at)
{
    if (!s->armed || s->type == TYPE_STREAM) return false;
    if (s->type != TYPE_ANY && s->type != type) return false;
    if (s->skip-- > 0) return false;
    s->armed = false;
    *at = s->at;
    fired++;
    return true;
}

static void cut(link_t *l)
{
    if (l->dying) return;
    l->dying = true;
    l->dead_at = now() + 2000000000;
}

/* When bytes that came now go on. */
static int64_t due(const struct rules *r)
{
    long ms = r->delay + (r->jitter ? random() % (2 * r->jitter + 1) - r->jitter : 0);
    if (random() % 100 < r->lose) ms += 200;
    return now() + ms * 1000000;
}

/* Towards the other side, as far as a cut of the stream allows. */
static void emit(link_t *l, way *w, struct rules *r, const uint8_t *p, size_t n)
{
    bool last = false;
    if (l->dying) return;
    if (r->cut.armed && r->cut.type == TYPE_STREAM && w->bytes + n >= r->cut.at) {
        n = r->cut.at > w->bytes ? r->cut.at - (size_t)w->bytes : 0;
        r->cut.armed = false;
        fired++;
        last = true;
    }
    buffer_add(&w->out, p, n);
    if (r->flip.armed && r->flip.type == TYPE_STREAM && r->flip.at / 8 < w->bytes + n &&
        r->flip.at / 8 >= w->bytes) {
        w->out.data[w->out.end - n + (r->flip.at / 8 - w->bytes)] ^=
            (uint8_t)(1 << r->flip.at % 8);
        r->flip.armed = false;
        fired++;
    }
    w->bytes += n;
    if (r->delay) marks_add(&w->late, w->bytes, due(r));
    bytes_total[w == &l->way[DOWN]] += n;
    if (last) cut(l);
}

/* A frame's header lies at the beginning of `in`. */
static void begin_frame(way *w, struct rules *r, int direction)
{
    const uint8_t *head = w->in.data + w->in.begin;
    int type = head[5];
    w->frame_left = RLE_FRAME_HEADER + (size_t)get32(head + 16);
    w->frame_at = 0;
    w->cut_at = w->flip_at = SIZE_MAX;
    w->dropped = w->kept = false;
    frames[direction][type < RLE_FRAME_TYPES ? type : RLE_FRAME_TYPES]++;
    hit(&r->cut, type, &w->cut_at);
    hit(&r->flip, type, &w->flip_at);
    if (w->cut_at != SIZE_MAX && w->cut_at > w->frame_left) w->cut_at = w->frame_left;
    if (r->drop > 0 && (r->drop_type == TYPE_ANY || r->drop_type == type)) {
        r->drop--;
        fired++;
        w->dropped = true;
    }
    if (!w->dropped && w->held_wanted == 0 && r->reorder > 0) {
        w->held_wanted = r->reorder;
        r->reorder = 0;
    }
    w->kept = !w->dropped && w->held_wanted > 0;
}

static void emit_held(link_t *l, way *w, struct rules *r)
{
    while (w->held_count > 0) {
        buffer *b = &w->held[--w->held_count];
        emit(l, w, r, b->data + b->begin, buffer_size(b));
        buffer_free(b);
    }
    w->held_wanted = 0;
    fired++;
}

/* `n` bytes of the present frame. */
static void frame_bytes(link_t *l, way *w, struct rules *r, uint8_t *p, size_t n)
{
    size_t at = w->frame_at;
    bool last = false;
    w->frame_at += n;
    w->frame_left -= n;
    if (w->flip_at != SIZE_MAX && w->flip_at / 8 >= at && w->flip_at / 8 < at + n)
        p[w->flip_at / 8 - at] ^= (uint8_t)(1 << w->flip_at % 8);
    if (w->cut_at != SIZE_MAX && w->cut_at <= at + n) {
        n = w->cut_at - at;
        last = true;
    }
    if (r->record) buffer_add(&r->recorded, p, n);
    if (w->kept) {
        buffer_add(&w->held[w->held_count], p, n);
        if (w->frame_left == 0 && ++w->held_count == w->held_wanted) emit_held(l, w, r);
    } else if (!w->dropped) {
        emit(l, w, r, p, n);
    }
    if (last) cut(l);
}

static void process(link_t *l, int direction)
{
    way *w = &l->way[direction];
    struct rules *r = &rules[direction];
    while (buffer_size(&w->in) && !l->dying) {
        uint8_t *p = w->in.data + w->in.begin;
        size_t n = buffer_size(&w->in);
        if (r->hold) return;
        if (!w->opaque && !w->frame_left) {
            if (n >= 4 && get32(p) != RLE_FRAME_MAGIC) {
                w->opaque = true;
            } else if (n < RLE_FRAME_HEADER) {
                if (!w->eof) return;
                w->opaque = true; /* no more comes */
            } else {
                begin_frame(w, r, direction);
                if (w->cut_at == 0) cut(l);
            }
            continue;
        }
        if (!w->opaque && n > w->frame_left) n = w->frame_left;
        if (r->swallow) {
            if (!w->opaque) w->frame_left -= n;
            w->frame_at += n;
        } else if (w->opaque) {
            emit(l, w, r, p, n);
        } else {
            frame_bytes(l, w, r, p, n);
        }
        w->in.begin += n;
    }
}

/* ---- links ---- */

static void link_free(link_t *l)
{
    close(l->way[UP].from);
    close(l->way[UP].to);
    for (int d = 0; d < WAYS; d++) {
        buffer_free(&l->way[d].in);
        buffer_free(&l->way[d].out);
        for (int i = 0; i < KEEP_MAX; i++) buffer_free(&l->way[d].held[i]);
    }
    *l = (link_t){0};
}

static void flush(link_t *l, int direction)
{
    way *w = &l->way[direction];
    struct rules *r = &rules[direction];
    if (r->hold && !l->dying) return;
    if (r->rate > 0) {
        int64_t t = now();
        w->allowance += (double)(t - w->refilled) * 1e-9 * r->rate;
        w->refilled = t;
        double most = r->quantum > r->rate / 50 ? r->quantum : r->rate / 50;
        if (w->allowance > most) w->allowance = most;
    }
    while (buffer_size(&w->out)) {
        size_t n = buffer_size(&w->out);
        if (r->rate > 0) {
            if (w->allowance < 1) return;
            if ((double)n > w->allowance) n = (size_t)w->allowance;
        }
        size_t ready = marks_ready(&w->late, w->sent, now());
        if (n > ready) n = ready;
        if (!n) return;
        ssize_t put =
            send(w->to, w->out.data + w->out.begin, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (put < 0) {
            if (errno == EAGAIN || errno == EINTR) return;
            w->sent += buffer_size(&w->out);
            w->out.begin = w->out.end; /* nobody is there any more */
            break;
        }
        w->out.begin += (size_t)put;
        w->sent += (uint64_t)put;
        w->allowance -= (double)put;
    }
    bool over = l->dying || (w->eof && !buffer_size(&w->in) && !r->swallow);
    if (over && !w->ended) {
        shutdown(w->to, SHUT_WR);
        w->ended = true;
    }
}

static void receive(link_t *l, int direction)
{
    way *w = &l->way[direction];
    uint8_t *room = buffer_room(&w->in, READ_SIZE);
    ssize_t n = recv(w->from, room, READ_SIZE, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0)
        w->eof = true;
    else if (!l->dying)
        w->in.end += (size_t)n;
    process(l, direction);
}

static void accept_one(void)
{
    int from = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (from < 0) return;
    int to = socket(target_at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (to < 0) die("socket");
    int i = 0;
    while (i < LINKS && links[i].used) i++;
    if (i == LINKS || connect(to, (struct sockaddr *)&target_at, target_len) != 0) {
        close(from);
        close(to);
        return;
    }
    set_nodelay(from, listen_at.ss_family);
    set_nodelay(to, target_at.ss_family);
    links[i] = (link_t){.used = true};
    links[i].way[UP] = (way){.from = from, .to = to, .refilled = now()};
    links[i].way[DOWN] = (way){.from = to, .to = from, .refilled = now()};
}

static void start_listening(void)
{
    int one = 1;
    listen_fd =
        socket(listen_at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listen_fd < 0) die("socket");
    if (listen_at.ss_family == AF_UNIX)
        unlink(((struct sockaddr_un *)&listen_at)->sun_path);
    else
        setsockopt(listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listen_fd, (struct sockaddr *)&listen_at, listen_len) != 0) die("bind");
    if (listen(listen_fd, 1024) != 0) die("listen");
    getsockname(listen_fd, (struct sockaddr *)&listen_at, &listen_len);
}

/* ---- commands ---- */

static char answer[4096];

static bool say(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(answer, sizeof answer, fmt, args);
    va_end(args);
    return true;
}

static int type_of(const char *name)
{
    if (strcmp(name, "any") == 0) return TYPE_ANY;
    if (strcmp(name, "stream") == 0) return TYPE_STREAM;
    for (int i = 1; i < RLE_FRAME_TYPES; i++)
        if (strcmp(name, rle_frame_type_name((unsigned)i)) == 0) return i;
    return -2;
}

static void statistics(void)
{
    int open = 0;
    for (int i = 0; i < LINKS; i++) open += links[i].used;
    int n = snprintf(answer, sizeof answer, "ok links=%d fired=%llu up=%llu down=%llu",
                     open, (unsigned long long)fired, (unsigned long long)bytes_total[UP],
                     (unsigned long long)bytes_total[DOWN]);
    for (int d = 0; d < WAYS; d++)
        for (unsigned t = 1; t < RLE_FRAME_TYPES; t++)
            n += snprintf(answer + n, sizeof answer - (size_t)n, " %s.%s=%llu",
                          d == UP ? "up" : "down", rle_frame_type_name(t),
                          (unsigned long long)frames[d][t]);
}

/* A command for one direction; false: not understood. */
static bool direct(struct rules *r, int direction, const char *verb, const char *type,
                   long a, long b)
{
    int t = type ? type_of(type) : TYPE_ANY;
    if (strcmp(verb, "hold") == 0) {
        r->hold = true;
    } else if (strcmp(verb, "swallow") == 0) {
        r->swallow = true;
    } else if (strcmp(verb, "release") == 0) {
        r->hold = r->swallow = false;
    } else if (strcmp(verb, "rate") == 0 || strcmp(verb, "dribble") == 0) {
        double v = type ? atof(type) : 0;
        r->rate = verb[0] == 'r' ? v : v > 0 ? 1000 / v : 0;
        r->quantum = verb[0] == 'r' ? 1400 : 1;
    } else if (strcmp(verb, "delay") == 0) {
        r->delay = type ? atol(type) : 0;
        r->jitter = a < r->delay ? a : r->delay;
        r->lose = b;
    } else if ((strcmp(verb, "cut") == 0 || strcmp(verb, "flip") == 0) && t != -2) {
        *(verb[0] == 'c' ? &r->cut : &r->flip) =
            (shot){.armed = true, .type = t, .at = (size_t)a, .skip = b};
    } else if (strcmp(verb, "drop") == 0 && t >= 0) {
        r->drop_type = t;
        r->drop = a;
    } else if (strcmp(verb, "reorder") == 0 && type && atoi(type) > 0 &&
               atoi(type) <= KEEP_MAX) {
        r->reorder = atoi(type);
    } else if (strcmp(verb, "record") == 0) {
        r->record = true;
        r->recorded.begin = r->recorded.end = 0;
    } else if (strcmp(verb, "replay") == 0) {
        r->record = false;
        for (int i = 0; i < LINKS; i++) {
            way *w = &links[i].way[direction];
            if (!links[i].used || w->frame_left) continue;
            emit(&links[i], w, r, r->recorded.data + r->recorded.begin,
                 buffer_size(&r->recorded));
            break;
        }
        fired++;
    } else {
        return false;
    }
    return true;
}

static void end_links(bool reset)
{
    struct linger hard = {.l_onoff = 1};
    for (int i = 0; i < LINKS; i++) {
        if (!links[i].used) continue;
        if (reset) {
            setsockopt(links[i].way[UP].from, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
            setsockopt(links[i].way[UP].to, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
            link_free(&links[i]);
        } else {
            cut(&links[i]);
        }
    }
}

static bool run(char *line)
{
    char verb[16] = "", dir[8] = "", type[24] = "";
    long a = 0, b = 0;
    int n = sscanf(line, "%15s %7s %23s %ld %ld", verb, dir, type, &a, &b);
    if (n < 1) return say("error empty");
    if (strcmp(verb, "stat") == 0) {
        statistics();
        return true;
    }
    if (strcmp(verb, "refuse") == 0) {
        if (listen_fd >= 0) close(listen_fd);
        listen_fd = -1;
    } else if (strcmp(verb, "accept") == 0) {
        if (listen_fd < 0) start_listening();
    } else if (strcmp(verb, "close") == 0 || strcmp(verb, "reset") == 0) {
        end_links(verb[0] == 'r');
    } else if (strcmp(verb, "clear") == 0) {
        for (int d = 0; d < WAYS; d++) {
            buffer_free(&rules[d].recorded);
            rules[d] = (struct rules){0};
        }
    } else {
        bool up = strcmp(dir, "up") == 0, down = strcmp(dir, "down") == 0;
        if (strcmp(dir, "both") == 0) up = down = true;
        bool good = up || down;
        for (int d = 0; d < WAYS && good; d++)
            if (d == UP ? up : down)
                good = direct(&rules[d], d, verb, n > 2 ? type : NULL, a, b);
        if (!good) return say("error %.60s", line);
    }
    return say("ok");
}

/* Whole lines out of standard input; false at its end. */
static bool read_commands(void)
{
    static char text[4096];
    static size_t have;
    ssize_t n = read(STDIN_FILENO, text + have, sizeof text - have - 1);
    if (n <= 0) return false;
    have += (size_t)n;
    text[have] = '\0';
    for (char *end; (end = strchr(text, '\n'));) {
        *end = '\0';
        run(text);
        printf("%s\n", answer);
        fflush(stdout);
        have -= (size_t)(end + 1 - text);
        memmove(text, end + 1, have + 1);
    }
    return true;
}

/* ---- the loop ---- */

/* Milliseconds until something has to be done although nothing comes. */
static int patience(void)
{
    int ms = -1;
    for (int i = 0; i < LINKS; i++) {
        if (!links[i].used) continue;
        if (links[i].dying && (ms < 0 || ms > 50)) ms = 50;
        for (int d = 0; d < WAYS; d++) {
            if (links[i].way[d].late.count) ms = 1;
            if (rules[d].rate <= 0 || !buffer_size(&links[i].way[d].out) || rules[d].hold)
                continue;
            double need = rules[d].quantum < 1 ? 1 : rules[d].quantum;
            int t = (int)(need * 1000 / rules[d].rate);
            if (t > 20) t = 20;
            if (t < 1) t = 1;
            if (ms < 0 || t < ms) ms = t;
        }
    }
    return ms;
}

int main(int argc, char **argv)
{
    static struct pollfd fds[2 + 4 * LINKS];
    if (argc != 3) {
        fprintf(stderr, "usage: fault_proxy LISTEN TARGET\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    parse_address(argv[1], &listen_at, &listen_len);
    parse_address(argv[2], &target_at, &target_len);
    start_listening();
    if (listen_at.ss_family == AF_UNIX)
        printf("listening %s\n", argv[1]);
    else
        printf("listening tcp://127.0.0.1:%u\n",
               ntohs(((struct sockaddr_in *)&listen_at)->sin_port));
    fflush(stdout);
    for (;;) {
        nfds_t n = 2;
        fds[0] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
        fds[1] = (struct pollfd){.fd = listen_fd, .events = POLLIN};
        for (int i = 0; i < LINKS; i++) {
            for (int d = 0; d < WAYS && links[i].used; d++) {
                const way *w = &links[i].way[d];
                bool listen_to = !w->eof && (links[i].dying || !rules[d].hold) &&
                                 buffer_size(&w->out) < OUT_MAX;
                bool write_to = buffer_size(&w->out) && rules[d].rate <= 0 &&
                                !rules[d].hold && !w->late.count;
                fds[n++] =
                    (struct pollfd){.fd = listen_to ? w->from : -1, .events = POLLIN};
                fds[n++] =
                    (struct pollfd){.fd = write_to ? w->to : -1, .events = POLLOUT};
            }
        }
        if (poll(fds, n, patience()) < 0 && errno != EINTR) die("poll");
        nfds_t at = 2;
        for (int i = 0; i < LINKS; i++) {
            if (!links[i].used) continue;
            for (int d = 0; d < WAYS; d++, at += 2)
                if (fds[at].revents) receive(&links[i], d);
        }
        if (fds[1].revents & POLLIN) accept_one();
        if (fds[0].revents && !read_commands()) return 0;
        for (int i = 0; i < LINKS; i++) {
            link_t *l = &links[i];
            for (int d = 0; d < WAYS && l->used; d++) {
                process(l, d);
                flush(l, d);
            }
            if (!l->used) continue;
            bool over = l->way[UP].eof && l->way[DOWN].eof &&
                        (l->dying || (l->way[UP].ended && l->way[DOWN].ended) ||
                         (rules[UP].swallow && rules[DOWN].swallow));
            if (over || (l->dying && now() > l->dead_at)) link_free(l);
        }
    }
}
