//! Arrays of token ids, read eight digits at a time.
//!
//! This is the fast way through the input, and only that: it either reads a whole array exactly
//! as the JSON library would, or says nothing. What is wrong with an array, the library finds
//! out.

/// Reads an array of token ids at the start of `json`, appends the ids to `tokens` and returns
/// how many bytes it took; `None` where it is anything else than an array of integers below
/// 2^32 in plain digits.
pub(crate) fn scan_tokens(json: &[u8], tokens: &mut Vec<u32>) -> Option<usize> {
    let mut at = skip_space(json, after(json, 0, b'[')?);
    if json.get(at) == Some(&b']') {
        return Some(at + 1);
    }
    loop {
        let (id, end) = read_id(json, at)?;
        tokens.push(id);
        at = end;
        // Most writers put nothing or one space between ids.
        if json.get(at).is_some_and(u8::is_ascii_whitespace) {
            at = skip_space(json, at);
        }
        match json.get(at)? {
            b',' => at += 1,
            b']' => return Some(at + 1),
            _ => return None,
        }
        if json.get(at).is_some_and(u8::is_ascii_whitespace) {
            at = skip_space(json, at);
        }
    }
}

/// The place after `byte`, which has to be at `at`.
pub(crate) fn after(json: &[u8], at: usize, byte: u8) -> Option<usize> {
    (json.get(at) == Some(&byte)).then_some(at + 1)
}

/// The place after what JSON takes for white space.
pub(crate) fn skip_space(json: &[u8], mut at: usize) -> usize {
    while matches!(json.get(at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
        at += 1;
    }
    at
}

/// One id and the place after its digits.
fn read_id(json: &[u8], at: usize) -> Option<(u32, usize)> {
    let Some(word) = json.get(at..).and_then(|rest| rest.first_chunk()) else {
        return read_id_by_digits(json, at);
    };
    let (value, digits) = leading_digits(u64::from_le_bytes(*word));
    match digits {
        0 => None,
        // Perhaps there are more; ten are the most that an id has.
        8 => read_id_by_digits(json, at),
        _ if digits > 1 && word[0] == b'0' => None,
        _ => Some((value, at + digits)),
    }
}

fn read_id_by_digits(json: &[u8], at: usize) -> Option<(u32, usize)> {
    let digits = json[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let text = &json[at..at + digits];
    if digits == 0 || digits > 10 || (digits > 1 && text[0] == b'0') {
        return None;
    }
    // Ten digits are below 2^64.
    let value = text.iter().fold(0u64, |value, byte| 10 * value + u64::from(byte - b'0'));
    Some((u32::try_from(value).ok()?, at + digits))
}

/// The number in the digits that eight bytes of text begin with, and how many they are. The
/// first byte of the text is the lowest of `word`.
fn leading_digits(word: u64) -> (u32, usize) {
    const EACH: u64 = 0x0101_0101_0101_0101;
    // A digit becomes 0 to 9, anything else more. Adding 0x76 then sets the high bit of what is
    // more than 9; a carry only reaches bytes behind the first of those.
    let values = word ^ (0x30 * EACH);
    let others = (values.wrapping_add(0x76 * EACH) | values) & (0x80 * EACH);
    let digits = others.trailing_zeros() as usize / 8;
    if digits == 0 {
        return (0, 0);
    }
    // Zeros in front, so that the last digit is in the highest byte; then pairs, fours and
    // eights of digits are joined, each by one multiplication.
    let aligned = values << (64 - 8 * digits);
    let pairs = (aligned.wrapping_mul(1 + (10 << 8)) >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul(1 + (100 << 16)) >> 16) & 0x0000_ffff_0000_ffff;
    let eight = fours.wrapping_mul(1 + (10_000 << 32)) >> 32;
    (eight as u32, digits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The verdict of the library: the ids of an array and its length, if that is what the
    /// text begins with.
    fn by_the_library(text: &str) -> Option<(Vec<u32>, usize)> {
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<Vec<u32>>();
        let ids = values.next()?.ok()?;
        Some((ids, values.byte_offset()))
    }

    fn scan(text: &str) -> Option<(Vec<u32>, usize)> {
        let mut ids = Vec::new();
        let length = scan_tokens(text.as_bytes(), &mut ids)?;
        Some((ids, length))
    }

    fn check(text: &str) {
        // The library takes white space before a value.
        if !text.starts_with([' ', '\t', '\n', '\r']) {
            assert_eq!(scan(text), by_the_library(text), "{text:?}");
        }
    }

    #[test]
    fn hostile_numbers() {
        let numbers = [
            "0",
            "-0",
            "00",
            "01",
            "007",
            "0000000000",
            "1",
            "9",
            "10",
            "99999999",
            "100000000",
            "12345678",
            "123456789",
            "4294967295",
            "4294967296",
            "9999999999",
            "00000000001",
            "18446744073709551615",
            "18446744073709551616",
            "12345678901234567890",
            "-1",
            "+1",
            "1.0",
            "1.",
            ".1",
            "1e3",
            "1E3",
            "1e",
            "0x10",
            "1_000",
            "NaN",
            "null",
            "true",
            "\"1\"",
            "[1]",
            "{}",
            "",
            " ",
            "１",
            "1 2",
            "1,",
            ",1",
            "1/2",
            ":",
            "/",
            "1\u{0}",
        ];
        let spaces = ["", " ", "\t", "\n", "\r", "\u{b}", "\u{c}", "\u{a0}", "  \t\r\n "];
        for number in numbers {
            for space in spaces {
                for rest in ["", "}", ",\"salt\":\"a\"}        "] {
                    check(&format!("[{space}{number}{space}]{rest}"));
                    check(&format!("[7,{space}{number}{space},123456]{rest}"));
                }
            }
        }
        for text in ["[", "[]", "[ ]", "[,]", "[1", "[1,", "[1,]", "", "]", "[[]]", "[]]", "{}"] {
            check(text);
        }
        check(&format!("{}1{}", "[".repeat(200), "]".repeat(200)));
    }

    #[test]
    fn every_number_of_digits() {
        for digits in 1..=12 {
            for first in ["1", "4", "9", "0"] {
                let number = first.to_owned() + &"6".repeat(digits - 1);
                for tail in 0..12 {
                    check(&format!("[{number}]{}", " ".repeat(tail)));
                    check(&format!("[{number},{number}]{}", " ".repeat(tail)));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn ids_are_read_as_the_library_reads_them(
            ids in proptest::collection::vec(
                prop_oneof![0..200_000u64, any::<u32>().prop_map(u64::from), any::<u64>()],
                0..40,
            ),
            between in proptest::sample::select(vec![",", ", ", " ,", ",\t", ",,", ";"]),
            rest in "[ ,}\\]\"0-9]{0,12}",
        ) {
            let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
            check(&format!("[{}]{rest}", ids.join(between)));
        }

        #[test]
        fn text_is_read_as_the_library_reads_it(text in "\\[[-0-9,. eE\\]\\[\"a\\\\]{0,30}") {
            check(&text);
        }
    }
}
