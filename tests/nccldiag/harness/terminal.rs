//! A run on a terminal of its own.

use nix::pty::{OpenptyResult, Winsize, openpty};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};

/// A program whose three streams are one pseudo terminal.
pub struct OnTerminal {
    child: Child,
    master: std::fs::File,
}

impl OnTerminal {
    /// Starts it on a terminal of 100 columns.
    pub fn new(command: &mut Command) -> Self {
        let size = Winsize { ws_row: 50, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        let OpenptyResult { master, slave } = openpty(Some(&size), None).expect("a terminal");
        let again = |fd: &OwnedFd| fd.try_clone().expect("duplicate a descriptor");
        command.env("TERM", "xterm-256color");
        command.stdin(again(&slave)).stdout(again(&slave)).stderr(slave);
        let child = command.spawn().unwrap_or_else(|e| panic!("start {command:?}: {e}"));
        // Closes the last copy of the terminal's other end in this process.
        command.stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        Self { child, master: master.into() }
    }

    /// Types something.
    pub fn types(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).expect("type");
    }

    /// Everything that it shows until its end.
    pub fn end(mut self) -> (ExitStatus, String) {
        let mut all = Vec::new();
        // The last reader's end is EIO, by which time everything was read.
        let _ = self.master.read_to_end(&mut all);
        let status = self.child.wait().expect("wait for the program");
        (status, String::from_utf8_lossy(&all).into_owned())
    }
}
