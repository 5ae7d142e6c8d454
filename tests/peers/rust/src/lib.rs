// SPDX-License-Identifier: Apache-2.0
//! What both peers share: the kinds of pieces, the task id that says what a piece holds, and small things.

use vortex_protocol::tlv::Tag;

/// Request and answer tags of a kind of piece.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Piece,
    Persistent,
    PersistentCache,
    Cache,
}

impl Kind {
    pub fn parse(text: &str) -> Kind {
        match text {
            "piece" => Kind::Piece,
            "persistent" => Kind::Persistent,
            "persistent-cache" => Kind::PersistentCache,
            _ => Kind::Cache,
        }
    }

    pub fn of_request(tag: Tag) -> Option<Kind> {
        match tag {
            Tag::DownloadPiece => Some(Kind::Piece),
            Tag::DownloadPersistentPiece => Some(Kind::Persistent),
            Tag::DownloadPersistentCachePiece => Some(Kind::PersistentCache),
            Tag::DownloadCachePiece => Some(Kind::Cache),
            _ => None,
        }
    }

    pub fn answer(self) -> Tag {
        match self {
            Kind::Piece => Tag::PieceContent,
            Kind::Persistent => Tag::PersistentPieceContent,
            Kind::PersistentCache => Tag::PersistentCachePieceContent,
            Kind::Cache => Tag::CachePieceContent,
        }
    }
}

/// The 64 bytes of a task id: what the C peers understand too.
pub fn task_id(size: u64, seed: u32) -> String {
    format!("{:.<64}", format!("size={size};seed={seed};"))
}

/// "size=N;seed=M;" and anything after it.
pub fn parse_task_id(id: &str) -> Option<(u64, u32)> {
    let mut words = id.split(';');
    let size = words.next()?.strip_prefix("size=")?.parse().ok()?;
    let seed = words.next()?.strip_prefix("seed=")?.parse().ok()?;
    Some((size, seed))
}

/// 512, 64K, 4M, 1G.
pub fn size_of(text: &str) -> u64 {
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    let shift = match text[digits.len()..].chars().next() {
        Some('K') => 10,
        Some('M') => 20,
        Some('G') => 30,
        _ => 0,
    };
    digits.parse::<u64>().unwrap_or(0) << shift
}

pub fn unknown_option(option: &str) -> ! {
    eprintln!("unknown option {option}");
    std::process::exit(2)
}
