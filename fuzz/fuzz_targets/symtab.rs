//! The symbol table of a hostile executable file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nccldiag::process::symtab::find;
use std::io::Cursor;

fuzz_target!(|data: &[u8]| {
    let _ = find(Cursor::new(data), &[b"__environ", b"environ"]);
});
