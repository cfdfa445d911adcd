//! How NCCL reads integers out of texts.

/// What `strtoll(text, NULL, 0)`, NCCL's parser for integers, makes of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The empty string, which NCCL takes for unset.
    Empty,
    /// The whole text is a number.
    Whole(i64),
    /// The whole text is an octal number that reads as another decimal one:
    /// `010` is 8.
    Octal(i64),
    /// Only a beginning is (0 when not even that): the rest is silently
    /// dropped, as in `8M`.
    Prefix(i64),
    /// Out of range: NCCL warns and takes its default.
    Overflow,
}

/// Parses as NCCL does (measured on 2.18.3 to 2.32.3).
pub fn parse_like_nccl(text: &[u8]) -> Parsed {
    if text.is_empty() {
        return Parsed::Empty;
    }
    let blank = |b: &u8| matches!(b, b' ' | b'\t'..=b'\r');
    let start = text.iter().position(|b| !blank(b)).unwrap_or(text.len());
    let (negative, signed) = match text.get(start) {
        Some(b'-') => (true, 1),
        Some(b'+') => (false, 1),
        _ => (false, 0),
    };
    let digits = &text[start + signed..];
    let (radix, skip) = match digits {
        [b'0', b'x' | b'X', d, ..] if d.is_ascii_hexdigit() => (16, 2),
        [b'0', ..] => (8, 0),
        _ => (10, 0),
    };
    let body = &digits[skip..];
    let mut value = Some(0i128);
    let mut used = 0;
    for digit in body.iter().map_while(|&b| char::from(b).to_digit(radix)) {
        used += 1;
        // Saturates far above 64 bits, which is out of range in any case.
        value = value.map(|v| (v * i128::from(radix) + i128::from(digit)).min(1 << 80));
    }
    let value = value.map_or(0, |v| if negative { -v } else { v });
    let Ok(value) = i64::try_from(value) else { return Parsed::Overflow };
    match used == body.len() && used > 0 {
        true if radix == 8 && value.unsigned_abs() > 7 => Parsed::Octal(value),
        true => Parsed::Whole(value),
        false => Parsed::Prefix(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn integers_parse_as_strtoll_does() {
        let rows = [
            ("8M", Parsed::Prefix(8)),
            ("abc", Parsed::Prefix(0)),
            ("0x100", Parsed::Whole(256)),
            ("010", Parsed::Octal(8)),
            ("007", Parsed::Whole(7)),
            ("0", Parsed::Whole(0)),
            ("0x", Parsed::Prefix(0)),
            ("089", Parsed::Prefix(0)),
            (" -2", Parsed::Whole(-2)),
            ("1e6", Parsed::Prefix(1)),
            ("", Parsed::Empty),
            ("-", Parsed::Prefix(0)),
            ("9223372036854775807", Parsed::Whole(i64::MAX)),
            ("-9223372036854775808", Parsed::Whole(i64::MIN)),
            ("9223372036854775808", Parsed::Overflow),
        ];
        for (text, parsed) in rows {
            assert_eq!(parse_like_nccl(text.as_bytes()), parsed, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn agrees_with_libc(text in "[ \t]{0,2}[-+]?(0x|0X|0)?[0-9a-fA-FxX]{0,20}[a-zA-Z ]{0,2}") {
            let c = std::ffi::CString::new(text.clone()).expect("no NUL in the pattern");
            // SAFETY: a C string and a null end pointer.
            let (libc_value, errno) = unsafe {
                *libc::__errno_location() = 0;
                (libc::strtoll(c.as_ptr(), std::ptr::null_mut(), 0), *libc::__errno_location())
            };
            match parse_like_nccl(text.as_bytes()) {
                Parsed::Empty => prop_assert!(text.is_empty()),
                Parsed::Whole(n) | Parsed::Prefix(n) | Parsed::Octal(n) => prop_assert_eq!((n, errno), (libc_value, 0)),
                Parsed::Overflow => prop_assert_eq!(errno, libc::ERANGE),
            }
        }
    }
}
