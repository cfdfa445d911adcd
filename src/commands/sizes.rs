//! Sizes of messages as a user writes them: `8..1G`, `64K,1M`.

use crate::exit::UsageError;

/// The largest size: a virtual GPU has no more memory.
const LARGEST: u64 = 64 << 30;
/// More sizes than anybody reads.
const MOST: usize = 1024;

/// Reads a list of sizes and ranges; ascending, each once.
///
/// # Errors
/// What is wrong with which part.
pub fn parse(text: &str) -> Result<Vec<u64>, UsageError> {
    let bad = |part: &str, why: &str| UsageError(format!("--sizes {part}: {why}"));
    let size = |part: &str| one(part).map_err(|why| bad(part, &why));
    let mut all = Vec::new();
    for part in text.split(',') {
        match part.split_once("..") {
            None => all.push(size(part)?),
            Some((from, to)) => {
                let (from, to) = (size(from)?, size(to)?);
                if from > to {
                    return Err(bad(part, "the first size is larger than the last"));
                }
                all.extend(
                    std::iter::successors(Some(from), |size| size.checked_mul(2))
                        .take_while(|size| *size <= to),
                );
            }
        }
    }
    all.sort_unstable();
    all.dedup();
    if all.len() > MOST {
        return Err(bad(text, "these are more than 1024 sizes"));
    }
    Ok(all)
}

/// `64K`, `1MiB`, `8`: bytes.
fn one(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        _ => return Err("write a size such as 8, 64K, 1M, 2G, or a range such as 8..1G".into()),
    };
    let number: u64 = number.parse().map_err(|_| "write a size such as 8, 64K or 1M")?;
    let bytes = number.checked_mul(1 << shift).filter(|bytes| *bytes <= LARGEST);
    match bytes {
        None => Err("the largest size is 64G".into()),
        Some(0) => Err("a size is above 0".into()),
        Some(bytes) => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_double_and_lists_sort() {
        assert_eq!(parse("8..1G").expect("valid").len(), 28);
        assert_eq!(parse("1M,8..32,16").expect("valid"), [8, 16, 32, 1 << 20]);
        assert_eq!(parse("3K..20KiB").expect("valid"), [3072, 6144, 12288]);
    }

    #[test]
    fn what_is_no_size_is_named() {
        for text in
            ["", "8..", "x", "1T", "0", "-8", "1G..8", "65G", "99999999999999999999", "8....16"]
        {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.starts_with("--sizes "), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_gives_sizes_or_an_error(text in "[0-9KMGib., -]{0,24}") {
            if let Ok(all) = parse(&text) {
                prop_assert!(all.is_sorted() && all.iter().all(|size| *size > 0));
            }
        }
    }
}
