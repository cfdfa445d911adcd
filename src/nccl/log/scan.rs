//! Reads words and numbers from the front of a text. Every step either takes
//! what was expected or gives `None`.

use std::str::FromStr;

/// What is left of a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scan<'a>(pub(super) &'a str);

impl<'a> Scan<'a> {
    /// Takes exactly this text.
    pub(super) fn eat(&mut self, expected: &str) -> Option<()> {
        self.0 = self.0.strip_prefix(expected)?;
        Some(())
    }

    /// Takes spaces, if there are any.
    pub(super) fn spaces(&mut self) {
        self.0 = self.0.trim_start_matches(' ');
    }

    /// Takes spaces and then exactly this text.
    pub(super) fn then(&mut self, expected: &str) -> Option<()> {
        self.spaces();
        self.eat(expected)
    }

    /// Takes up to the next `end`, and `end` itself.
    pub(super) fn until(&mut self, end: &str) -> Option<&'a str> {
        let (before, after) = self.0.split_once(end)?;
        self.0 = after;
        Some(before)
    }

    /// Takes a number of any kind, after spaces. Signs, points and exponents
    /// as C prints them.
    pub(super) fn number<N: FromStr>(&mut self) -> Option<N> {
        self.spaces();
        let part = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'-' | b'.' | b'+' | b'e');
        let end = self.0.bytes().position(|byte| !part(byte)).unwrap_or(self.0.len());
        self.taken(end)
    }

    /// Takes an integer, after spaces.
    pub(super) fn int<N: FromStr>(&mut self) -> Option<N> {
        self.spaces();
        let sign = usize::from(self.0.starts_with('-'));
        let digits = self.0.bytes().skip(sign).take_while(u8::is_ascii_digit).count();
        self.taken(sign + digits)
    }

    fn taken<N: FromStr>(&mut self, end: usize) -> Option<N> {
        let (text, rest) = self.0.split_at_checked(end)?;
        let number = text.parse().ok()?;
        self.0 = rest;
        Some(number)
    }

    /// Takes `0x` and hex digits, after spaces.
    pub(super) fn hex(&mut self) -> Option<u64> {
        self.then("0x")?;
        let end = self.0.bytes().take_while(u8::is_ascii_hexdigit).count();
        let (text, rest) = self.0.split_at(end);
        self.0 = rest;
        u64::from_str_radix(text, 16).ok()
    }

    /// Takes what is there up to a space or the end, after spaces; never
    /// nothing.
    pub(super) fn word(&mut self) -> Option<&'a str> {
        self.spaces();
        let end = self.0.find(' ').unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(end);
        self.0 = rest;
        (!word.is_empty()).then_some(word)
    }
}
