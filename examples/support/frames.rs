//! What a client sends, cut into the protocol's messages, so that single ones can be lost.

/// Bytes that are not a whole message yet.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    rest: Vec<u8>,
}

impl Frames {
    /// Takes bytes in and gives the whole messages among them that `keep` wants.
    pub(crate) fn take(&mut self, bytes: &[u8], keep: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        self.rest.extend_from_slice(bytes);
        let mut kept = Vec::new();
        while let Some(length) = first_length(&self.rest).filter(|&length| length <= self.rest.len()) {
            let frame: Vec<u8> = self.rest.drain(..length).collect();
            if keep(&frame) {
                kept.extend(frame);
            }
        }
        kept
    }
}

/// The length of the first message, if its first line is there.
fn first_length(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")? + 2;
    let line = std::str::from_utf8(&bytes[..end]).unwrap_or_default();
    let mut words = line.split_ascii_whitespace();
    match words.next() {
        // The last word is the size of all that follows but its line end.
        Some("PUB" | "HPUB") => Some(end + words.last()?.parse::<usize>().ok()? + 2),
        _ => Some(end),
    }
}

/// Whether a message says that a delivery is finished.
pub(crate) fn is_ack(frame: &[u8]) -> bool {
    let says = |what: &[u8]| frame.windows(what.len()).any(|window| window == what);
    frame.starts_with(b"PUB $JS.ACK.") && (says(b"+ACK") || says(b"+TERM"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acks_are_taken_out_wherever_the_bytes_are_cut() {
        let sent = b"PING\r\nPUB a 2\r\n\r\n\r\nPUB $JS.ACK.s.c inbox 4\r\n+ACK\r\nPUB $JS.ACK.s.c 4\r\n+WPI\r\nHPUB b 1 6\r\nh$JS.A\r\nPONG\r\n";
        let left = b"PING\r\nPUB a 2\r\n\r\n\r\nPUB $JS.ACK.s.c 4\r\n+WPI\r\nHPUB b 1 6\r\nh$JS.A\r\nPONG\r\n";
        for size in 1..=sent.len() {
            let mut frames = Frames::default();
            let pieces = sent
                .chunks(size)
                .flat_map(|piece| frames.take(piece, |frame| !is_ack(frame)));
            assert_eq!(pieces.collect::<Vec<u8>>(), left, "in pieces of {size}");
        }
    }
}
