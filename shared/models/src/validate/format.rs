//! The formats of texts. One that is not known here is not checked.

use std::net::{Ipv4Addr, Ipv6Addr};

/// True when a text has a format, or the format is not known.
pub(super) fn matches(format: &str, text: &str) -> bool {
    match format {
        "date" => date(text),
        "time" => time(text),
        "date-time" => text.split_once(['T', 't']).is_some_and(|(day, rest)| date(day) && time(rest)),
        "duration" => duration(text),
        "email" => text.is_ascii() && email(text),
        "idn-email" => email(text),
        "hostname" => text.is_ascii() && hostname(text),
        "idn-hostname" => hostname(text),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "uri" => text.is_ascii() && has_scheme(text) && uri_text(text),
        "iri" => has_scheme(text) && uri_text(text),
        "uri-reference" => text.is_ascii() && uri_text(text),
        "iri-reference" => uri_text(text),
        "url" => {
            ["http://", "https://", "ftp://"].iter().any(|scheme| rest_of(text, scheme).is_some_and(|rest| !rest.is_empty()))
                && uri_text(text)
        }
        "uri-template" => uri_template(text),
        "uuid" => uuid(text),
        "regex" => super::pattern::Pattern::new(text).is_ok(),
        "json-pointer" => text.is_empty() || pointer(text),
        "json-pointer-uri-fragment" => text.strip_prefix('#').is_some_and(|rest| rest.is_empty() || pointer(rest)),
        "relative-json-pointer" => relative_pointer(text),
        _ => true,
    }
}

fn rest_of<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    text.split_at_checked(prefix.len()).filter(|(start, _)| start.eq_ignore_ascii_case(prefix)).map(|(_, rest)| rest)
}

/// The value of a text of exactly `length` digits.
fn digits(text: &str, length: usize) -> Option<u32> {
    let plain = text.len() == length && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

fn date(text: &str) -> bool {
    let mut parts = text.split('-');
    let (Some(year), Some(month), Some(day), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else { return false };
    let (Some(year), Some(month), Some(day)) = (digits(year, 4), digits(month, 2), digits(day, 2)) else { return false };
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    };
    (1..=days).contains(&day)
}

/// A time of day with its zone. A 60th second is only where a leap second can be: at the end of a day in UTC.
fn time(text: &str) -> bool {
    let Some((clock, zone)) = text.find(['Z', 'z', '+', '-']).map(|at| text.split_at(at)) else { return false };
    let (clock, fraction) = clock.split_once('.').map_or((clock, None), |(clock, fraction)| (clock, Some(fraction)));
    if fraction.is_some_and(|fraction| fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit())) {
        return false;
    }
    let mut parts = clock.split(':');
    let (Some(hour), Some(minute), Some(second), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else { return false };
    let (Some(hour), Some(minute), Some(second)) = (digits(hour, 2), digits(minute, 2), digits(second, 2)) else { return false };
    let Some(offset) = zone_minutes(zone) else { return false };
    let utc = (i64::from(hour * 60 + minute) - offset).rem_euclid(24 * 60);
    hour < 24 && minute < 60 && (second < 60 || (second == 60 && utc == 23 * 60 + 59))
}

/// The minutes that a zone is ahead of UTC.
fn zone_minutes(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let sign = if zone.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = zone.strip_prefix(['+', '-'])?.split_once(':')?;
    let (hours, minutes) = (digits(hours, 2)?, digits(minutes, 2)?);
    (hours < 24 && minutes < 60).then(|| sign * i64::from(hours * 60 + minutes))
}

fn duration(text: &str) -> bool {
    let Some(body) = text.strip_prefix('P') else { return false };
    if let Some(weeks) = body.strip_suffix('W') {
        return !weeks.is_empty() && weeks.bytes().all(|byte| byte.is_ascii_digit());
    }
    let (day, clock) = body.split_once('T').map_or((body, None), |(day, clock)| (day, Some(clock)));
    let day_fits = day.is_empty() || units(day, "YMD");
    day_fits && clock.map_or(!day.is_empty(), |clock| units(clock, "HMS"))
}

/// True for numbers that are followed by units in their order.
fn units(text: &str, mut order: &str) -> bool {
    let mut rest = text;
    while !rest.is_empty() {
        let length = rest.bytes().take_while(u8::is_ascii_digit).count();
        let Some(unit) = rest[length..].chars().next().filter(|_| length > 0) else { return false };
        let Some(at) = order.find(unit) else { return false };
        order = &order[at + 1..];
        rest = &rest[length + unit.len_utf8()..];
    }
    !text.is_empty()
}

fn email(text: &str) -> bool {
    let Some((local, domain)) = text.rsplit_once('@') else { return false };
    let quoted = local.len() > 1 && local.starts_with('"') && local.ends_with('"');
    let plain = local.split('.').all(|part| {
        !part.is_empty() && part.chars().all(|c| !c.is_ascii() || c.is_ascii_alphanumeric() || "!#$%&'*+/=?^_`{|}~-".contains(c))
    });
    (quoted || plain) && (hostname(domain) || domain.strip_prefix('[').is_some_and(|rest| rest.ends_with(']')))
}

fn hostname(text: &str) -> bool {
    /// Longest name and longest label of the domain name system.
    const LENGTHS: (usize, usize) = (253, 63);
    text.len() <= LENGTHS.0
        && text.split('.').all(|label| {
            let inside = label.chars().all(|c| !c.is_ascii() || c.is_ascii_alphanumeric() || c == '-');
            !label.is_empty() && label.len() <= LENGTHS.1 && inside && !label.starts_with('-') && !label.ends_with('-')
        })
}

fn has_scheme(text: &str) -> bool {
    text.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    })
}

/// True when every character may stand in a reference, escaped ones with two digits.
fn uri_text(text: &str) -> bool {
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        let allowed = match c {
            '%' => rest.len() >= 2 && rest.bytes().take(2).all(|byte| byte.is_ascii_hexdigit()),
            ' ' | '"' | '<' | '>' | '\\' | '^' | '`' | '{' | '|' | '}' => false,
            _ => !c.is_control() && !c.is_whitespace(),
        };
        if !allowed {
            return false;
        }
    }
    true
}

fn uri_template(text: &str) -> bool {
    let mut parts = text.split('{');
    let literal = |text: &str| !text.contains(['}', ' ', '"', '<', '>', '\\', '^', '`', '|']);
    parts.next().is_some_and(literal)
        && parts.all(|part| part.split_once('}').is_some_and(|(name, rest)| !name.is_empty() && literal(rest) && !name.contains(' ')))
}

fn uuid(text: &str) -> bool {
    let lengths = [8, 4, 4, 4, 12];
    let groups: Vec<&str> = text.split('-').collect();
    groups.len() == lengths.len()
        && groups.iter().zip(lengths).all(|(group, length)| group.len() == length && group.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn pointer(text: &str) -> bool {
    text.starts_with('/') && text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']))
}

fn relative_pointer(text: &str) -> bool {
    let length = text.bytes().take_while(u8::is_ascii_digit).count();
    let (up, rest) = text.split_at(length);
    length > 0 && (up == "0" || !up.starts_with('0')) && (rest.is_empty() || rest == "#" || pointer(rest))
}

#[cfg(test)]
mod tests {
    use super::matches;

    /// What pi-ai accepts and refuses.
    #[test]
    fn formats() {
        for (format, good, bad) in [
            (
                "date-time",
                &["2020-01-01T00:00:00Z", "2020-01-01T23:59:60Z", "2020-01-01t00:00:00z", "2020-01-01T00:00:00.123+01:00"][..],
                &["2020-01-01 00:00:00Z", "2020-13-01T00:00:00Z", "2020-01-01T00:00:00", "2020-02-30T00:00:00Z"][..],
            ),
            ("date", &["2020-02-29"], &["2021-02-29", "2020-1-1", "+020-01-01"]),
            ("time", &["00:00:00Z", "10:00:00.5+01:00"], &["00:00:00", "24:00:00Z", "10:00:00+0100", "é"]),
            ("email", &["a@b", "a@b.co", "\"a b\"@c.d", "A@B.CO"], &["a..b@c.d", ".a@b.co", "é@b.co", "nope"]),
            ("idn-email", &["é@b.co"], &["x"]),
            ("hostname", &["a", "a.b", "1.2.3.4"], &["-a", "a_b", "", "é"]),
            ("idn-hostname", &["é"], &["a b"]),
            ("ipv4", &["1.2.3.4"], &["256.1.1.1", "1.2.3", "01.2.3.4"]),
            ("ipv6", &["::1", "::ffff:1.2.3.4"], &["1::2::3", "fe80::1%eth0", ":"]),
            ("uri", &["http://a", "a:b", "urn:x:y", "http://[::1]/", "a:"], &["a", "http://a b", "//a", "http://é"]),
            ("uri-reference", &["/a", "#x", ""], &["a b", "é", "\\", "%zz"]),
            ("iri", &["http://é"], &["x"]),
            ("iri-reference", &["é"], &["a b"]),
            ("url", &["http://a.b", "http://a"], &["x", "http://"]),
            ("uri-template", &["/{a}"], &["/{a", "{}"]),
            ("uuid", &["123E4567-e89b-12d3-a456-426614174000"], &["urn:uuid:123e4567-e89b-12d3-a456-426614174000", "123e4567e89b"]),
            ("regex", &["a"], &["("]),
            ("json-pointer", &["/a", "", "/~0~1"], &["a", "/~2"]),
            ("json-pointer-uri-fragment", &["#/a"], &["x"]),
            ("relative-json-pointer", &["0", "1/a", "0#"], &["a", "01"]),
            ("duration", &["P1D", "PT1S", "P1Y2M", "P2W"], &["P", "1D", "P1W2D", "PT", "P1M1Y"]),
            ("unknown", &["anything"], &[]),
        ] {
            for text in good {
                assert!(matches(format, text), "{format} {text:?}");
            }
            for text in bad {
                assert!(!matches(format, text), "{format} {text:?}");
            }
        }
    }
}
