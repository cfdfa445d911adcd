//! View L of real processes: every way in which a program can keep its
//! `environ`, and every way in which reading it can fail.

use super::environ::{EnvBlock, exec_block};
use super::live::{Live, Reader, live_environ};
use super::slot::Source;
use super::targets::{
    Program, Running, as_nobody, c_program, c_source, compile, eventually, skipped, with_prelude,
};
use std::process::Command;

const PLAIN: &str = "int main(void) { setenv(\"NCCL_ALGO\", \"Tree\", 1); setenv(\"LATE\", \"1\", 1); \
                     ready(); rest(); }";
const COPY: &str = "extern char **environ; int main(void) { setenv(\"NCCL_ALGO\", \"Tree\", 1); \
                    setenv(\"LATE\", \"1\", 1); if (!environ) return 1; ready(); rest(); }";

fn live(pid: i32) -> Live {
    Reader::new().live(pid).expect("readable")
}

fn text<'a>(env: &'a EnvBlock, name: &str) -> Option<&'a str> {
    env.get(name).map(|value| std::str::from_utf8(value).expect("text"))
}

/// Builds, starts with NCCL_ALGO=Ring, and checks that the exec block still
/// says so while the live environment has what the program set later.
fn check_late_setenv(body: &str, flags: &[&str], expected: impl Fn(&Source) -> bool) {
    if let Some(program) = c_program(body, flags) {
        check_program(&program, flags, expected);
    }
}

fn check_program(program: &Program, flags: &[&str], expected: impl Fn(&Source) -> bool) {
    let target = program.start(&[("NCCL_ALGO", "Ring"), ("KEPT", "yes")]);
    let exec = exec_block(target.pid()).expect("readable");
    assert_eq!(text(&exec, "NCCL_ALGO"), Some("Ring"), "{flags:?}");
    assert_eq!(text(&exec, "LATE"), None, "{flags:?}");
    let mut reader = Reader::new();
    // The second time the reader knows the file.
    for round in 0..2 {
        let live = reader.live(target.pid()).expect("readable");
        assert!(expected(&live.source), "{flags:?}, round {round}: {:?}", live.source);
        let env = &live.block;
        assert_eq!(text(env, "NCCL_ALGO"), Some("Tree"), "{flags:?}");
        assert_eq!((text(env, "LATE"), text(env, "KEPT")), (Some("1"), Some("yes")), "{flags:?}");
        assert_eq!(env.len(), 3, "{flags:?}");
    }
    // Another process of the same file lies at another address.
    let other = program.start(&[("NCCL_ALGO", "Ring")]);
    let again = reader.live(other.pid()).expect("readable");
    assert_eq!(again.block.len(), 2, "{flags:?}");
}

fn from_libc(source: &Source) -> bool {
    matches!(source, Source::Library(path) if path.windows(4).any(|part| part == b"libc"))
}

#[test]
fn libc_keeps_the_variable() {
    check_late_setenv(PLAIN, &["-pie", "-fPIE"], from_libc);
    check_late_setenv(PLAIN, &["-no-pie"], from_libc);
}

#[test]
fn a_copy_relocation_moves_the_variable_into_the_executable() {
    check_late_setenv(COPY, &["-no-pie", "-fno-pie"], |source| *source == Source::Executable);
}

#[test]
fn every_linker_copies_all_names_of_the_variable() {
    for linker in ["bfd", "gold", "lld", "mold"] {
        let flag = format!("-fuse-ld={linker}");
        let executable = |source: &Source| *source == Source::Executable;
        check_late_setenv(COPY, &["-no-pie", "-fno-pie", &flag], executable);
    }
}

#[test]
fn a_variable_of_the_same_name_that_libc_does_not_use() {
    let body = "char *mine[] = {\"NCCL_ALGO=mine\", 0}; char **environ = mine;\n\
                int main(void) { setenv(\"NCCL_ALGO\", \"Tree\", 1); setenv(\"LATE\", \"1\", 1); \
                ready(); rest(); }";
    check_late_setenv(body, &["-rdynamic"], from_libc);
}

#[test]
fn musl() {
    let build = |flags: &[&str]| compile("musl-gcc", &with_prelude(PLAIN), flags);
    if let Some(program) = build(&[]) {
        check_program(&program, &["musl"], |source| matches!(source, Source::Library(_)));
    }
    if let Some(program) = build(&["-static"]) {
        check_program(&program, &["musl -static"], |source| *source == Source::SymbolTable);
    }
    if let Some(program) = build(&["-static", "-s"]) {
        check_program(&program, &["musl -static -s"], |source| *source == Source::Scan);
    }
}

#[test]
fn the_old_hash_table_works_too() {
    let executable = |source: &Source| *source == Source::Executable;
    check_late_setenv(COPY, &["-no-pie", "-fno-pie", "-Wl,--hash-style=sysv"], executable);
    check_late_setenv(PLAIN, &["-Wl,--hash-style=sysv"], from_libc);
}

#[test]
fn static_programs_have_a_symbol_table() {
    let table = |source: &Source| *source == Source::SymbolTable;
    check_late_setenv(PLAIN, &["-static"], table);
    check_late_setenv(PLAIN, &["-static-pie", "-fPIE"], table);
}

#[test]
fn stripped_static_programs_are_searched() {
    let scan = |source: &Source| *source == Source::Scan;
    check_late_setenv(PLAIN, &["-static", "-s"], scan);
    check_late_setenv(PLAIN, &["-static-pie", "-fPIE", "-s"], scan);
    let untouched = "int main(void) { ready(); rest(); }";
    let Some(program) = c_program(untouched, &["-static", "-s"]) else { return };
    let target = program.start(&[("NCCL_ALGO", "Ring"), ("X", "1")]);
    let found = live(target.pid());
    assert_eq!((found.source, found.block.len()), (Source::Scan, 2));
}

#[test]
fn a_stripped_static_program_with_two_environments_is_not_guessed_at() {
    let body = "static char *other[] = {\"NCCL_ALGO=Tree\", \"PATH=/\", 0}; char **volatile kept;\n\
                int main(void) { kept = other; ready(); rest(); }";
    let Some(program) = c_program(body, &["-static", "-s"]) else { return };
    let target = program.start(&[("NCCL_ALGO", "Ring")]);
    let why = live_environ(target.pid()).expect_err("two candidates").0;
    assert!(why.contains("2 places in its data look like an environment"), "{why}");
}

#[test]
fn a_program_started_through_the_dynamic_linker() {
    let Some(program) = c_program(COPY, &["-no-pie", "-fno-pie"]) else { return };
    let linker = "/lib64/ld-linux-x86-64.so.2";
    if !std::path::Path::new(linker).exists() {
        return skipped("no /lib64/ld-linux-x86-64.so.2");
    }
    let mut command = Command::new(linker);
    command.arg(&program.path).env_clear().env("NCCL_ALGO", "Ring");
    let target = Running::ready(command);
    assert_eq!(text(&live(target.pid()).block, "NCCL_ALGO"), Some("Tree"));
}

#[test]
fn a_deleted_executable() {
    for flags in [&["-static"][..], &["-no-pie"]] {
        let Some(program) = c_program(PLAIN, flags) else { return };
        let target = program.start(&[]);
        std::fs::remove_file(&program.path).expect("our own file");
        assert_eq!(text(&live(target.pid()).block, "NCCL_ALGO"), Some("Tree"), "{flags:?}");
    }
}

#[test]
fn a_grown_environment() {
    let body = "int main(void) { char n[32]; char *v = malloc(300001); memset(v, 'v', 300000); \
                v[300000] = 0; for (int i = 0; i < 3000; i++) { sprintf(n, \"N%d\", i); \
                setenv(n, i == 7 ? v : n, 1); } ready(); rest(); }";
    for flags in [&[][..], &["-static", "-s"]] {
        let Some(program) = c_program(body, flags) else { return };
        let target = program.start(&[("FIRST", "1")]);
        let env = live(target.pid()).block;
        assert_eq!(env.len(), 3001);
        assert_eq!(env.get("N7").map(<[u8]>::len), Some(300_000));
        assert_eq!(text(&env, "N2999"), Some("N2999"));
        assert_eq!(env.entries().next(), Some(&b"FIRST=1"[..]));
    }
}

#[test]
fn odd_entries_and_an_emptied_environment() {
    let body = "int main(int argc, char **argv) { if (argc > 9) return 0; static char *odd[] = \
                {\"A=1\", \"bare\", \"A=2\", \"\", 0}; extern char **environ; environ = odd; \
                ready(); rest(); }";
    if let Some(program) = c_program(body, &[]) {
        let env = live(program.start(&[]).pid()).block;
        assert_eq!(env.entries().collect::<Vec<_>>(), [&b"A=1"[..], b"bare", b"A=2", b""]);
        assert_eq!((env.duplicates("A"), env.looks_overwritten()), (2, true));
    }
    let body = "int main(void) { clearenv(); ready(); rest(); }";
    if let Some(program) = c_program(body, &[]) {
        let target = program.start(&[("NCCL_ALGO", "Ring")]);
        assert!(live(target.pid()).block.is_empty());
        assert_eq!(exec_block(target.pid()).expect("readable").len(), 1);
    }
}

#[test]
fn a_process_title_over_the_exec_block() {
    // What setproctitle does: move the environment away, write over the area.
    let body = "extern char **environ; int main(int argc, char **argv) { int n = 0; \
                while (environ[n]) n++; char *end = environ[n - 1] + strlen(environ[n - 1]); \
                char **moved = calloc(n + 1, sizeof *moved); \
                for (int i = 0; i < n; i++) moved[i] = strdup(environ[i]); environ = moved; \
                memset(argv[0], 0, end - argv[0]); strcpy(argv[0], \"ray::worker\"); \
                ready(); rest(); }";
    let Some(program) = c_program(body, &[]) else { return };
    let target = program.start(&[("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "Simple")]);
    let exec = exec_block(target.pid()).expect("readable");
    assert!(exec.looks_overwritten());
    assert_eq!(exec.get("NCCL_ALGO"), None);
    let env = live(target.pid()).block;
    assert_eq!((text(&env, "NCCL_ALGO"), env.looks_overwritten()), (Some("Ring"), false));
    let arguments = super::stat::cmdline(target.pid()).expect("readable");
    assert_eq!(arguments[0], b"ray::worker");
}

#[test]
fn a_mutating_process_never_gives_garbage() {
    let body = "int main(void) { char v[64]; ready(); for (unsigned i = 0; i < 2000000000u; i++) { \
                sprintf(v, \"%u-%u\", i, i); setenv(\"BUSY\", v, 1); \
                if (i % 64 == 0) { sprintf(v, \"V%u\", i % 4096); setenv(v, v, 1); } \
                if (i % 4096 == 0) usleep(300); } }";
    let Some(program) = c_program(body, &["-O1"]) else { return };
    let target = program.start(&[("NCCL_ALGO", "Ring")]);
    let (mut reader, mut read) = (Reader::new(), 0);
    for _ in 0..100 {
        let env = match reader.live(target.pid()) {
            Ok(live) => live.block,
            Err(why) => {
                assert!(why.0.contains("changing") || why.0.contains("not mapped"), "{why}");
                continue;
            }
        };
        read += 1;
        assert_eq!(text(&env, "NCCL_ALGO"), Some("Ring"));
        for (name, value) in env.variables() {
            let whole = match name {
                b"NCCL_ALGO" => true,
                b"BUSY" => value
                    .split(|byte| *byte == b'-')
                    .collect::<Vec<_>>()
                    .windows(2)
                    .all(|v| v[0] == v[1]),
                _ => name == value,
            };
            assert!(whole, "{}", String::from_utf8_lossy(&[name, value].join(&b'=')));
        }
    }
    assert!(read > 0, "never read at all");
}

#[test]
fn a_starting_process_is_never_taken_for_an_empty_one() {
    let Some(program) = c_program(PLAIN, &[]) else { return };
    for _ in 0..50 {
        let mut command = Command::new(&program.path);
        command.env_clear().env("KEPT", "yes");
        // Started, but perhaps not yet through its dynamic linker.
        let target = Running::start(command);
        assert_eq!(text(&live(target.pid()).block, "KEPT"), Some("yes"));
    }
}

#[test]
fn a_process_that_hangs_while_it_loads_libraries_is_not_taken_for_an_empty_one() {
    // An IFUNC resolver runs inside the dynamic linker, before libc starts.
    let body = "extern char **environ; static int one(void) { return 1; }\n\
                static void *pick(void) { \
                __asm__ volatile(\"syscall\" :: \"a\"(34) : \"rcx\", \"r11\", \"memory\"); return one; }\n\
                int chosen(void) __attribute__((ifunc(\"pick\")));\n\
                int main(void) { return chosen() + USE(environ); }";
    for flags in [&["-DUSE(x)=0"][..], &["-DUSE(x)=!x", "-no-pie", "-fno-pie"]] {
        let flags = [flags, &["-O1", "-fcf-protection=none", "-Wl,-z,now"]].concat();
        let Some(program) = c_program(body, &flags) else { return };
        let mut command = Command::new(&program.path);
        command.env_clear().env("NCCL_ALGO", "Ring");
        let target = Running::start(command);
        let why = live_environ(target.pid()).expect_err("it never gets to libc").0;
        assert!(why.contains("is still starting"), "{why}");
    }
}

#[test]
fn the_main_thread_may_have_exited() {
    let body = "#include <pthread.h>\nstatic void *other(void *p) { sleep(1000); return p; }\n\
                int main(void) { pthread_t t; pthread_create(&t, 0, other, 0); \
                setenv(\"LATE\", \"1\", 1); ready(); pthread_exit(0); }";
    let Some(program) = c_program(body, &["-pthread"]) else { return };
    let target = program.start(&[("NCCL_ALGO", "Ring")]);
    let pid = target.pid();
    eventually("the exit of the main thread", || {
        super::stat::read(pid).ok()?.is_zombie().then_some(())
    });
    assert_eq!(exec_block(pid).expect("readable").len(), 1);
    assert_eq!(text(&live(pid).block, "LATE"), Some("1"));
}

#[test]
fn python() {
    let mut command = Command::new("python3");
    command.env("NCCL_ALGO", "Ring").args([
        "-c",
        "import os,sys; os.environ['NCCL_ALGO']='Tree'; print('ready', flush=True); sys.stdin.read()",
    ]);
    if Command::new("python3").arg("-c").arg("").status().is_err() {
        return skipped("no python3");
    }
    let target = Running::ready(command);
    let env = live(target.pid()).block;
    assert_eq!(text(&env, "NCCL_ALGO"), Some("Tree"));
    let exec = exec_block(target.pid()).expect("readable");
    assert_eq!(text(&exec, "NCCL_ALGO"), Some("Ring"));
    assert_eq!(env.get("PATH"), exec.get("PATH"));
}

#[test]
fn a_fork_without_exec_has_its_own_live_environment() {
    let body = "int main(void) { setenv(\"WHO\", \"parent\", 1); pid_t pid = fork(); if (pid == 0) { \
                setenv(\"WHO\", \"child\", 1); printf(\"%d\\n\", getpid()); fflush(stdout); rest(); \
                _exit(0); } waitpid(pid, 0, 0); }";
    let Some(program) = c_program(body, &[]) else { return };
    let mut command = Command::new(&program.path);
    command.env_clear().env("NCCL_ALGO", "Ring");
    let mut target = Running::start(command);
    let child: i32 = target.line().parse().expect("the child's pid");
    assert_eq!(text(&live(child).block, "WHO"), Some("child"));
    assert_eq!(text(&live(target.pid()).block, "WHO"), Some("parent"));
    assert_eq!(exec_block(child), exec_block(target.pid()));
}

#[test]
fn processes_without_memory_are_named() {
    let Some(program) = c_program(PLAIN, &[]) else { return };
    let mut target = program.start(&[]);
    let pid = target.pid();
    target.kill_without_waiting();
    eventually("the zombie", || super::stat::read(pid).ok()?.is_zombie().then_some(()));
    let expected = format!("process {pid} is a zombie: it has exited and its memory is gone");
    assert_eq!(live_environ(pid).expect_err("zombie").0, expected);
    assert_eq!(exec_block(pid).expect_err("zombie").0, expected);
    drop(target);
    assert!(live_environ(pid).expect_err("gone").0.ends_with("no such process"));

    let tree = super::tree::Tree::read().expect("the process table");
    match tree.processes().find(|stat| stat.is_kernel_thread()) {
        Some(thread) => {
            let pid = thread.pid;
            let expected = format!("process {pid} is a kernel thread: it has no environment");
            assert_eq!(live_environ(pid).expect_err("kernel thread").0, expected);
            assert_eq!(exec_block(pid).expect_err("kernel thread").0, expected);
        }
        None => skipped("no kernel thread is visible here"),
    }
}

#[test]
fn another_user_is_told_so() {
    let Some(program) = c_program(PLAIN, &[]) else { return };
    let target = program.start(&[]);
    as_nobody(|| {
        for why in [live_environ(target.pid()).err(), exec_block(target.pid()).err()] {
            let why = why.expect("no permission").0;
            assert!(why.contains("permission denied: another user's process"), "{why}");
        }
    });
}

/// A program without libc, with an environment in a variable of its own.
fn freestanding(prefix: &str, call: &str) -> String {
    format!(
        "{prefix}\nvoid _start(void) {{ char ready[] = \"ready\\n\"; char c;\n\
         {call}(1, ready, 6, WRITE); while ({call}(0, &c, 1, READ) > 0) {{}}\n\
         {call}(0, 0, 0, EXIT); for (;;) {{}} }}"
    )
}

const CALL64: &str = "#define READ 0\n#define WRITE 1\n#define EXIT 60\n\
    static long call(long a, const void *b, long c, long n) { long r; \
    __asm__ volatile(\"syscall\" : \"=a\"(r) : \"a\"(n), \"D\"(a), \"S\"(b), \"d\"(c) : \"rcx\", \"r11\", \"memory\"); \
    return r; }\n";
const CALL32: &str = "#define READ 3\n#define WRITE 4\n#define EXIT 1\n\
    static long call(long a, const void *b, long c, long n) { long r; \
    __asm__ volatile(\"int $0x80\" : \"=a\"(r) : \"a\"(n), \"b\"(a), \"c\"(b), \"d\"(c) : \"memory\"); \
    return r; }\n";
const BARE: [&str; 4] = ["-nostdlib", "-static", "-fno-stack-protector", "-O1"];

#[test]
fn a_go_program_has_only_its_exec_block() {
    // What the Go linker leaves behind, also in a stripped program.
    let note = "__asm__(\".section .note.go.buildid,\\\"a\\\",@note\\n.long 4,4,4\\n\
                .ascii \\\"Go\\\\0\\\\0idid\\\"\\n.text\");";
    let source = freestanding(&format!("{CALL64}{note}"), "call");
    let Some(program) = c_source(&source, &[&BARE[..], &["-s"]].concat()) else { return };
    let target = program.start(&[("NCCL_ALGO", "Ring")]);
    let why = live_environ(target.pid()).expect_err("no libc").0;
    assert!(why.contains("is a Go program without libc"), "{why}");
    assert_eq!(exec_block(target.pid()).expect("readable").len(), 1);
}

#[test]
fn a_program_without_libc_is_told_so() {
    let source = freestanding(CALL64, "call");
    let Some(program) = c_source(&source, &BARE) else { return };
    let why = live_environ(program.start(&[]).pid()).expect_err("no libc").0;
    assert!(why.contains("static program without a variable environ"), "{why}");
}

#[test]
fn a_32_bit_program() {
    let own = "char *entries[] = {\"NCCL_ALGO=Ring\", \"X=1\", 0}; char **environ = entries;\n";
    let source = freestanding(&format!("{CALL32}{own}"), "call");
    let Some(program) = c_source(&source, &[&BARE[..], &["-m32", "-fno-pie"]].concat()) else {
        return;
    };
    let mut command = Command::new(&program.path);
    command.env_clear();
    let Ok(probe) = Command::new(&program.path).stdin(std::process::Stdio::null()).output() else {
        return skipped("this kernel does not run 32-bit programs");
    };
    if !probe.status.success() {
        return skipped("this kernel does not run 32-bit programs");
    }
    let found = live(Running::ready(command).pid());
    assert_eq!(found.source, Source::SymbolTable);
    assert_eq!(found.block.entries().collect::<Vec<_>>(), [&b"NCCL_ALGO=Ring"[..], b"X=1"]);
    // The same through the search, for the width of its pointers.
    let flags = [&BARE[..], &["-m32", "-fno-pie", "-s"]].concat();
    let Some(program) = c_source(&source, &flags) else { return };
    let found = live(program.start(&[]).pid());
    assert_eq!((found.source, found.block.len()), (Source::Scan, 2));
    assert!(program.dir().exists());
}
