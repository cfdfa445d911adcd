//! Makes text that came from elsewhere (values, file names, logs) harmless for
//! a terminal.

use crate::model::Seen;
use std::fmt::Write as _;

/// Replaces control characters, and the characters that reorder text, by
/// visible escapes such as `\x1b` and `\u{202e}`; newlines too.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if c.is_ascii_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c if drives_a_terminal(c) => {
                let _ = write!(out, "{}", c.escape_unicode());
            }
            c => out.push(c),
        }
    }
    out
}

/// The same for a text of several lines, which stay lines.
pub fn escape_lines(text: &str) -> String {
    text.lines().map(escape).collect::<Vec<_>>().join("\n")
}

/// Control characters, and those that reorder the text around them.
pub(super) fn drives_a_terminal(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A value for a person: escaped, and cut after `limit` characters.
pub fn value(seen: &Seen, limit: usize) -> String {
    match seen {
        Seen::Absent => "(absent)".into(),
        Seen::Unreadable(why) => format!("(unreadable: {})", escape(&why.0)),
        Seen::Value(bytes) => {
            let text = escape(&String::from_utf8_lossy(bytes));
            match text.char_indices().nth(limit) {
                Some((end, _)) => format!("{}...", &text[..end]),
                None => text,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_drives_a_terminal_passes() {
        let hostile = "a\x1b[2J\x07\r\n\u{9b}31m\u{202e}b";
        assert_eq!(escape(hostile), "a\\x1b[2J\\x07\\x0d\\n\\u{9b}31m\\u{202e}b");
    }

    #[test]
    fn a_long_value_is_cut_between_characters() {
        assert_eq!(value(&Seen::Value("äöü".into()), 2), "äö...");
    }
}
