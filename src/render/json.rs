//! JSON: the schema of record, which other commands read.

use super::escape::drives_a_terminal;
use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, PrettyFormatter, Serializer};
use std::io::{self, Write};

/// Writes any result, indented, with a final newline.
///
/// # Errors
/// The writer's own.
pub fn write(result: &impl Serialize, to: &mut dyn Write) -> io::Result<()> {
    let mut serializer = Serializer::with_formatter(&mut *to, Harmless::default());
    result.serialize(&mut serializer)?;
    to.write_all(b"\n")
}

/// As serde_json's own, but also writes those characters as `\u` escapes that
/// JSON allows raw and a terminal obeys.
#[derive(Default)]
struct Harmless(PrettyFormatter<'static>);

impl Formatter for Harmless {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        to: &mut W,
        text: &str,
    ) -> io::Result<()> {
        let mut rest = text;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| drives_a_terminal(*c)) {
            to.write_all(&rest.as_bytes()[..at])?;
            // All of them are in the basic plane: one unit each.
            write!(to, "\\u{:04x}", u32::from(c))?;
            rest = &rest[at + c.len_utf8()..];
        }
        to.write_all(rest.as_bytes())
    }

    fn write_char_escape<W: ?Sized + Write>(
        &mut self,
        to: &mut W,
        c: CharEscape,
    ) -> io::Result<()> {
        self.0.write_char_escape(to, c)
    }

    fn begin_array<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.begin_array(to)
    }

    fn end_array<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.end_array(to)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(to, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.end_array_value(to)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.begin_object(to)
    }

    fn end_object<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.end_object(to)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(to, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.begin_object_value(to)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.end_object_value(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_harmless_indented_and_means_the_same() {
        let hostile = "a\u{9b}31m\u{202e}\x1b[2J\n\"ä";
        let mut out = Vec::new();
        write(&[hostile], &mut out).expect("a Vec takes all");
        let text = String::from_utf8(out).expect("UTF-8");
        assert_eq!(text, "[\n  \"a\\u009b31m\\u202e\\u001b[2J\\n\\\"ä\"\n]\n");
        assert_eq!(serde_json::from_str::<[String; 1]>(&text).expect("JSON")[0], hostile);
    }
}
