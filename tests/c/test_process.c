/* test_process.c - processes, the handoff, groups with their output, private folders. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/process.h"
#include "base/supervisor.h"
#include "process_check.h"

static const char *const sh_exit3[] = {"sh", "-c", "exit 3", NULL};

static int wait_for(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void a_process_starts_and_its_end_is_described(void **state)
{
    (void)state;
    rle_process_spec spec = {.exe = "/bin/sh", .argv = sh_exit3, .stdin_fd = -2};
    rle_process p;
    assert_int_equal(rle_process_start(&spec, &p), RLE_OK);
    int status = wait_for(p.pid);
    char text[64];
    rle_process_describe(status, text, sizeof text);
    assert_string_equal(text, "failed (exit code 3)");
    assert_int_equal(rle_process_exit_code(status), 3);
    rle_process_describe(SIGKILL, text, sizeof text);
    assert_string_equal(text, "died (signal 9)");
    assert_int_equal(rle_process_exit_code(SIGKILL), 137);
    rle_process_fini(&p);
}

static void a_program_that_cannot_run_is_an_error_with_its_name(void **state)
{
    (void)state;
    rle_process_spec spec = {.exe = "/no/such/program", .argv = sh_exit3, .stdin_fd = -1,
                             .pipe_output = true, .handoff = "x", .handoff_size = 1};
    rle_process p = {.pid = 77};
    assert_int_equal(rle_process_start(&spec, &p), RLE_UNAVAILABLE);
    assert_non_null(strstr(rle_message(), "/no/such/program"));
    assert_non_null(strstr(rle_message(), "No such file"));
    assert_int_equal(p.pid, 77);
}

static void the_handoff_reaches_the_child_and_nobody_else(void **state)
{
    (void)state;
    static const char secret[] = "binary \0 secret";
    const char *const argv[] = {"test_process", "handoff", NULL};
    rle_process_spec spec = {.argv = argv, .handoff = secret, .handoff_size = sizeof secret,
                             .stdin_fd = -2, .pipe_output = true};
    rle_process p;
    assert_int_equal(rle_process_start(&spec, &p), RLE_OK);
    char got[256];
    assert_int_equal(read_everything(p.out, got, sizeof got), sizeof secret);
    assert_memory_equal(got, secret, sizeof secret);
    assert_int_equal(wait_for(p.pid), 0);
    rle_process_fini(&p);
    size_t size = 1;
    assert_null(rle_handoff_take(&size)); /* we are nobody's child in this sense */
    assert_int_equal(size, 0);
}

static void files_of_the_parent_do_not_reach_the_child(void **state)
{
    (void)state;
    int leak = open("/dev/null", O_RDONLY); /* as io.open does it: no CLOEXEC */
    const char *const argv[] = {"sh", "-c", "ls -1 /proc/self/fd | wc -l", NULL};
    rle_process_spec spec = {.exe = "/bin/sh", .argv = argv, .handoff = "x", .handoff_size = 1,
                             .stdin_fd = -2, .pipe_output = true};
    rle_process p;
    assert_int_equal(rle_process_start(&spec, &p), RLE_OK);
    char got[64] = {0};
    read_everything(p.out, got, sizeof got - 1);
    assert_int_equal(atoi(got), 5); /* 0, 1, 2, the handoff, and ls's own */
    assert_int_equal(wait_for(p.pid), 0);
    rle_process_fini(&p);
    close(leak);
}

static void usage_is_what_the_system_says(void **state)
{
    (void)state;
    rle_usage before, after;
    assert_int_equal(rle_process_usage(&before), RLE_OK);
    int fd = dup(0);
    assert_int_equal(rle_process_usage(&after), RLE_OK);
    close(fd);
    assert_int_equal(before.descriptors, open_fds() - 3); /* ".", "..", the folder's own */
    assert_int_equal(after.descriptors, before.descriptors + 1);
    assert_int_equal(before.threads, 1);
    assert_true(before.resident > 100 * 1024);
}

/* ---- groups ---- */

/* Each member runs its handoff as a shell script (see main). */
static rle_status run_group(rle_member *members, int count, bool secondaries_finish,
                            rle_group_result *result)
{
    static const char *const argv[] = {"test_process", "script", NULL};
    for (int i = 0; i < count; i++) members[i].handoff_size = strlen(members[i].handoff) + 1;
    rle_group group = {.argv = argv, .members = members, .count = count,
                       .grace_ns = 300000000, .secondaries_finish = secondaries_finish};
    return rle_group_run(&group, result);
}

#define STUBBORN "trap '' TERM; while :; do sleep 0.02; done"

static void the_run_ends_well_with_its_primaries(void **state)
{
    (void)state;
    rle_member members[] = {TRAINER("exit 0"), TRAINER("sleep 0.1; exit 0"),
                            OBSERVER("exec sleep 60"), OBSERVER(STUBBORN), OBSERVER("exit 0")};
    rle_group_result r;
    assert_int_equal(run_group(members, 5, false, &r), RLE_OK);
    assert_int_equal(r.exit_code, 0);
    assert_int_equal(r.failed, -1);
    assert_int_equal(r.signal, 0);
    assert_string_equal(r.message, "");
}

static void the_first_failure_decides(void **state)
{
    (void)state;
    rle_member members[] = {TRAINER("exec sleep 60"), OBSERVER("sleep 0.1; exit 7"),
                            OBSERVER(STUBBORN)};
    rle_group_result r;
    assert_int_equal(run_group(members, 3, false, &r), RLE_OK);
    assert_int_equal(r.exit_code, 7);
    assert_int_equal(r.failed, 1);
    assert_string_equal(r.message, "observer \"obs_0_for_0\" failed (exit code 7)");

    members[1].handoff = "kill -9 $$";
    assert_int_equal(run_group(members, 3, false, &r), RLE_OK);
    assert_int_equal(r.exit_code, 137);
    assert_string_equal(r.message, "observer \"obs_0_for_0\" died (signal 9)");
}

/* A cause is to show soon after what it causes. */
#define AFTER_BOTH "while [ ! -e $DIR/1 ] || [ ! -e $DIR/2 ]; do sleep 0.01; done; "

static void a_consequence_is_not_taken_for_the_cause(void **state)
{
    (void)state;
    char folder[] = "/tmp/rle-test-XXXXXX", command[64];
    assert_non_null(mkdtemp(folder));
    setenv("DIR", folder, 1);
    rle_member members[] = {TRAINER(AFTER_BOTH "exit 7"),
                            OBSERVER("touch $DIR/1; exit 69"),
                            OBSERVER("touch $DIR/2; exit 69")};
    rle_group_result r;
    assert_int_equal(run_group(members, 3, false, &r), RLE_OK);
    assert_int_equal(r.failed, 0);
    assert_int_equal(r.exit_code, 7);

    /* Without another cause it is one: while the trainer goes on, or at the end of all. */
    members[0].handoff = "exec sleep 60";
    members[2].handoff = "sleep 0.05; exit 69";
    assert_int_equal(run_group(members, 3, false, &r), RLE_OK);
    assert_int_equal(r.failed, 1);
    assert_int_equal(r.exit_code, 69);
    members[0].handoff = "exit 69";
    assert_int_equal(run_group(members, 3, false, &r), RLE_OK);
    assert_int_equal(r.exit_code, 69);

    /* Observers that lose a trainer because it is done have not failed. */
    snprintf(command, sizeof command, "rm %s/*", folder);
    assert_int_equal(system(command), 0);
    members[0].handoff = AFTER_BOTH "exit 0";
    members[2].handoff = "touch $DIR/2; exit 69";
    assert_int_equal(run_group(members, 3, false, &r), RLE_OK);
    assert_int_equal(r.exit_code, 0);
    assert_int_equal(r.failed, -1);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static void secondaries_finish_the_run_when_told_so(void **state)
{
    (void)state;
    rle_member members[] = {TRAINER("exec sleep 60"), OBSERVER("exit 0"), OBSERVER("exit 0")};
    rle_group_result r;
    assert_int_equal(run_group(members, 3, true, &r), RLE_OK);
    assert_int_equal(r.exit_code, 0);
}

static void a_signal_to_the_launcher_ends_all(void **state)
{
    (void)state;
    rle_member members[] = {TRAINER("kill -INT $PPID; exec sleep 60"), OBSERVER(STUBBORN)};
    rle_group_result r;
    assert_int_equal(run_group(members, 2, false, &r), RLE_OK);
    assert_int_equal(r.signal, SIGINT);
    assert_int_equal(r.exit_code, 130);
    assert_int_equal(r.failed, -1);
}

static void an_ignored_signal_stays_ignored(void **state)
{
    (void)state;
    signal(SIGINT, SIG_IGN);
    rle_member members[] = {TRAINER("kill -INT $PPID; sleep 0.05; exit 0")};
    rle_group_result r;
    assert_int_equal(run_group(members, 1, false, &r), RLE_OK);
    signal(SIGINT, SIG_DFL);
    assert_int_equal(r.signal, 0);
    assert_int_equal(r.exit_code, 0);
}

static void exit_codes_count_also_where_children_were_ignored(void **state)
{
    (void)state;
    signal(SIGCHLD, SIG_IGN);
    rle_member members[] = {TRAINER("exit 4")};
    rle_group_result r;
    assert_int_equal(run_group(members, 1, false, &r), RLE_OK);
    assert_true(signal(SIGCHLD, SIG_DFL) == SIG_IGN); /* put back as it was */
    assert_int_equal(r.exit_code, 4);
}

/* What a library does that waits for every child there is. */
static void *take_exit_codes(void *self)
{
    (void)self;
    usleep(100000);
    signal(SIGCHLD, SIG_IGN);
    return NULL;
}

static void an_end_that_nobody_knows_is_no_good_end(void **state)
{
    (void)state;
    static const char *const scripts[] = {"sleep 0.4; exit 3", "sleep 0.4; exit 0"};
    for (int i = 0; i < 2; i++) {
        rle_member members[] = {TRAINER(scripts[i]), OBSERVER("exec sleep 60")};
        rle_group_result r;
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, take_exit_codes, NULL), 0);
        assert_int_equal(run_group(members, 2, false, &r), RLE_OK);
        pthread_join(thread, NULL);
        assert_int_equal(r.exit_code, 1);
        assert_int_equal(r.failed, 0);
        assert_string_equal(
            r.message,
            "trainer \"agent_0\" ended, and something else in this process took "
            "its exit code (waitpid)");
    }
}

static void every_process_reads_the_source_from_its_start(void **state)
{
    (void)state;
    static const char *const argv[] = {"sh", "-s", NULL};
    static const char source[] = "x=4\nexit $((x + 2))\n";
    rle_member members[] = {TRAINER("x"), TRAINER("x")};
    rle_group group = {.exe = "/bin/sh", .argv = argv, .members = members, .count = 2,
                       .source = source, .source_size = sizeof source - 1};
    rle_group_result r;
    assert_int_equal(rle_group_run(&group, &r), RLE_OK);
    assert_int_equal(r.exit_code, 6);
}

static void lines_come_out_whole_with_the_name_in_front(void **state)
{
    (void)state;
    rle_member members[] = {TRAINER(
        "printf 'a\\nb'; sleep 0.05; printf 'c\\n\\n'; echo err >&2; printf 'no newline'")};
    members[0].prefix = true;
    rle_group_result r;
    capture out, err;
    char out_text[256], err_text[256];
    capture_begin(&out, 1);
    capture_begin(&err, 2);
    rle_status status = run_group(members, 1, false, &r);
    capture_end(&err, 2, err_text, sizeof err_text);
    capture_end(&out, 1, out_text, sizeof out_text);
    assert_int_equal(status, RLE_OK);
    assert_string_equal(out_text, "agent_0 | a\nagent_0 | bc\nagent_0 | \nagent_0 | no newline\n");
    assert_string_equal(err_text, "agent_0 | err\n");
}

static void a_flood_of_output_is_complete(void **state)
{
    (void)state;
    rle_member members[] = {TRAINER("yes 0123456789 | head -n 50000"),
                            OBSERVER("yes abcdefghij | head -n 50000; sleep 0.05")};
    members[0].prefix = members[1].prefix = true;
    members[1].primary = true;
    rle_group_result r;
    capture out;
    size_t size = 4 << 20;
    char *text = test_malloc(size);
    capture_begin(&out, 1);
    rle_status status = run_group(members, 2, false, &r);
    capture_end(&out, 1, text, size);
    assert_int_equal(status, RLE_OK);
    int digits = 0, letters = 0;
    for (char *line = text; *line;) {
        char *end = strchr(line, '\n');
        assert_non_null(end);
        *end = 0;
        if (strcmp(line, "agent_0 | 0123456789") == 0)
            digits++;
        else if (strcmp(line, "obs_0_for_0 | abcdefghij") == 0)
            letters++;
        else
            fail_msg("broken line: %s", line);
        line = end + 1;
    }
    assert_int_equal(digits, 50000);
    assert_int_equal(letters, 50000);
    test_free(text);
}

static void a_program_that_is_missing_ends_the_start(void **state)
{
    (void)state;
    static const char *const argv[] = {"x", NULL};
    rle_member members[] = {TRAINER("x"), OBSERVER("x")};
    rle_group group = {.exe = "/no/such", .argv = argv, .members = members, .count = 2};
    rle_group_result r = {.exit_code = 5};
    assert_int_equal(rle_group_run(&group, &r), RLE_UNAVAILABLE);
    assert_int_equal(r.exit_code, 5);
}

static void every_allocation_of_a_run_may_fail(void **state)
{
    (void)state;
    rle_member members[] = {TRAINER("x")};
    members[0].prefix = true;
    members[0].handoff_size = 1;
    static const char *const argv[] = {"sh", "-c", "exit 0", NULL};
    char folder[] = "/tmp/rle-test-XXXXXX", requests[64];
    assert_non_null(mkdtemp(folder));
    snprintf(requests, sizeof requests, "%s/requests", folder);
    rle_group group = {.exe = "/bin/sh",
                       .argv = argv,
                       .members = members,
                       .count = 1,
                       .restarts = {.max = 3, .within = 1, .backoff = 1},
                       .requests = requests};
    bool passed = false;
    for (int nth = 1; nth < 40 && !passed; nth++) {
        rle_group_result r;
        rle_mem_fault((uint64_t)nth, false);
        rle_status status = rle_group_run(&group, &r);
        rle_mem_fault(0, false);
        passed = status == RLE_OK;
        if (!passed) assert_int_equal(status, RLE_RESOURCE_EXHAUSTED);
        assert_int_equal(open_fds(), fds_before);
        assert_int_equal(rle_mem_bytes(), bytes_before);
    }
    assert_true(passed);
    assert_int_equal(rmdir(folder), 0);
}

/* ---- folders ---- */

static void a_private_folder_is_private_and_goes_away(void **state)
{
    (void)state;
    char base[] = "/tmp/rle-base-XXXXXX", path[108], file[160], old[64];
    assert_non_null(mkdtemp(base));
    setenv("XDG_RUNTIME_DIR", base, 1);

    /* Left by a process that was killed: removed. Locked by one that lives: kept. */
    snprintf(old, sizeof old, "%s/rlengine-run-dead00", base);
    mkdir(old, 0700);
    char held[64];
    snprintf(held, sizeof held, "%s/rlengine-run-held00", base);
    mkdir(held, 0700);
    struct timeval hour_ago[2] = {{.tv_sec = time(NULL) - 3600}, {.tv_sec = time(NULL) - 3600}};
    /* Somebody else's, whatever its name begins with: kept. */
    char other[64];
    snprintf(other, sizeof other, "%s/rlengine-results", base);
    mkdir(other, 0700);
    utimes(old, hour_ago);
    utimes(held, hour_ago);
    utimes(other, hour_ago);
    int held_fd = open(held, O_RDONLY | O_DIRECTORY);
    assert_int_equal(flock(held_fd, LOCK_EX | LOCK_NB), 0);

    int lock;
    assert_int_equal(rle_private_folder(path, sizeof path, &lock), RLE_OK);
    assert_int_equal(strncmp(path, base, strlen(base)), 0);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_not_equal(access(old, F_OK), 0);
    assert_int_equal(access(held, F_OK), 0);
    assert_int_equal(rmdir(other), 0);

    snprintf(file, sizeof file, "%s/agent_0.sock", path);
    close(open(file, O_CREAT | O_WRONLY, 0600));
    rle_private_folder_remove(path, lock);
    assert_int_not_equal(access(path, F_OK), 0);
    close(held_fd);
    rmdir(held);
    assert_int_equal(rmdir(base), 0);
    unsetenv("XDG_RUNTIME_DIR");
}

static int child_main(const char *what)
{
    size_t size, again;
    const char *bytes = rle_handoff_take(&size);
    if (!bytes) return 1;
    if (strcmp(what, "script") == 0) execl("/bin/sh", "sh", "-c", bytes, NULL);
    if (getenv(RLE_HANDOFF_ENV)) return 2; /* or our children would inherit it */
    if (rle_handoff_take(&again) != bytes || again != size) return 3;
    if (open_fds() != 3 + 3) return 4; /* ".", ".." and the folder's own; the handoff is closed */
    return write(1, bytes, size) == (ssize_t)size ? 0 : 5;
}

int main(int argc, char **argv)
{
    if (argc > 1) return child_main(argv[1]);
#define TEST(f) cmocka_unit_test_setup_teardown(f, remember, compare)
    const struct CMUnitTest tests[] = {
        TEST(a_process_starts_and_its_end_is_described),
        TEST(a_program_that_cannot_run_is_an_error_with_its_name),
        TEST(the_handoff_reaches_the_child_and_nobody_else),
        TEST(files_of_the_parent_do_not_reach_the_child),
        TEST(usage_is_what_the_system_says),
        TEST(the_run_ends_well_with_its_primaries),
        TEST(the_first_failure_decides),
        TEST(a_consequence_is_not_taken_for_the_cause),
        TEST(secondaries_finish_the_run_when_told_so),
        TEST(a_signal_to_the_launcher_ends_all),
        TEST(an_ignored_signal_stays_ignored),
        TEST(exit_codes_count_also_where_children_were_ignored),
        TEST(an_end_that_nobody_knows_is_no_good_end),
        TEST(every_process_reads_the_source_from_its_start),
        TEST(lines_come_out_whole_with_the_name_in_front),
        TEST(a_flood_of_output_is_complete),
        TEST(a_program_that_is_missing_ends_the_start),
        TEST(every_allocation_of_a_run_may_fail),
        TEST(a_private_folder_is_private_and_goes_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
