// SPDX-License-Identifier: Apache-2.0
//! vortex-client-rs: fetches pieces with tokio and vortex-protocol as dfdaemon does; options and output are those of the C client
//! (tests/peers/vortex_client.c), without --blocking and --split.

use bytes::{Bytes, BytesMut};
use socket2::{SockRef, TcpKeepalive};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use vortex_peers::{size_of, task_id, unknown_option, Kind};
use vortex_protocol::tlv::{
    cache_piece_content::CachePieceContent, download_cache_piece::DownloadCachePiece,
    download_persistent_cache_piece::DownloadPersistentCachePiece, download_persistent_piece::DownloadPersistentPiece,
    download_piece::DownloadPiece, error::Error as VortexError, persistent_cache_piece_content::PersistentCachePieceContent,
    persistent_piece_content::PersistentPieceContent, piece_content::PieceContent, Tag,
};
use vortex_protocol::{Header, Vortex, HEADER_SIZE};

struct Options {
    address: String,
    pieces: u32,
    concurrency: u32,
    sizes: Vec<u64>,
    kind: Kind,
    delay: Duration,
    timeout: Duration,
    rate: u64,
    read_size: usize,
    requests: u32,
    unknown: bool,
    half_close: bool,
}

#[derive(Default)]
struct Totals {
    next: AtomicU32,
    ok: AtomicU32,
    errors: AtomicU32,
    bytes: AtomicU64,
}

fn options() -> Options {
    let mut o = Options {
        address: "127.0.0.1:4005".into(),
        pieces: 1,
        concurrency: 1,
        sizes: vec![4 << 20],
        kind: Kind::Piece,
        delay: Duration::ZERO,
        timeout: Duration::from_secs(60),
        rate: 0,
        read_size: 512 << 10,
        requests: 1,
        unknown: false,
        half_close: true,
    };
    let mut args = std::env::args().skip(1);
    while let Some(a) = args.next() {
        match a.as_str() {
            "--unknown" => o.unknown = true,
            "--no-half-close" => o.half_close = false,
            _ => {
                let v = args.next().unwrap_or_default();
                match a.as_str() {
                    "--connect" => o.address = v,
                    "--pieces" => o.pieces = v.parse().unwrap(),
                    "--concurrency" => o.concurrency = v.parse().unwrap(),
                    "--size" | "--sizes" => o.sizes = v.split(',').map(size_of).collect(),
                    "--kind" => o.kind = Kind::parse(&v),
                    "--delay-ms" => o.delay = Duration::from_millis(v.parse().unwrap()),
                    "--timeout-ms" => o.timeout = Duration::from_millis(v.parse().unwrap()),
                    "--rate" => o.rate = size_of(&v),
                    "--read-size" => o.read_size = size_of(&v) as usize,
                    "--requests-per-connection" => o.requests = v.parse().unwrap(),
                    _ => unknown_option(&a),
                }
            }
        }
    }
    o
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn request(kind: Kind, id: String, number: u32) -> Result<Bytes, Failure> {
    let (tag, value): (Tag, Bytes) = match kind {
        Kind::Piece => (Tag::DownloadPiece, DownloadPiece::new(id, number).into()),
        Kind::Persistent => (Tag::DownloadPersistentPiece, DownloadPersistentPiece::new(id, number).into()),
        Kind::PersistentCache => (Tag::DownloadPersistentCachePiece, DownloadPersistentCachePiece::new(id, number).into()),
        Kind::Cache => (Tag::DownloadCachePiece, DownloadCachePiece::new(id, number).into()),
    };
    Ok(Vortex::new(tag, value)?.into())
}

/// Number, length and digest of the answer's metadata.
fn metadata(kind: Kind, value: Bytes) -> Result<(u32, u64, String), Failure> {
    macro_rules! of {
        ($t:ty) => {{
            let m = <$t>::try_from(value)?.metadata();
            Ok((m.number, m.length, m.digest))
        }};
    }
    match kind {
        Kind::Piece => of!(PieceContent),
        Kind::Persistent => of!(PersistentPieceContent),
        Kind::PersistentCache => of!(PersistentCachePieceContent),
        Kind::Cache => of!(CachePieceContent),
    }
}

async fn read_metadata(r: &mut (impl AsyncRead + Unpin)) -> Result<Bytes, Failure> {
    let n = r.read_u32().await?;
    let mut b = BytesMut::zeroed(4 + n as usize);
    b[..4].copy_from_slice(&n.to_be_bytes());
    r.read_exact(&mut b[4..]).await?;
    Ok(b.freeze())
}

async fn content(
    r: &mut (impl AsyncRead + Unpin), o: &Options, t: &Totals, size: u64, digest: &str, began: Instant, taken: &mut u64,
) -> Result<(), Failure> {
    let mut crc = crc32fast::Hasher::new();
    let mut left = size;
    let mut buf = BytesMut::with_capacity(o.read_size);

    while left > 0 {
        buf.clear();
        buf.reserve(o.read_size);
        let n = (&mut *r).take(left).read_buf(&mut buf).await?;
        if n == 0 {
            return Err("too short".into());
        }
        crc.update(&buf[..n]);
        left -= n as u64;
        *taken += n as u64;
        t.bytes.fetch_add(n as u64, Relaxed);
        if o.rate > 0 {
            let due = Duration::from_secs_f64(*taken as f64 / o.rate as f64);
            if let Some(ahead) = due.checked_sub(began.elapsed()) {
                tokio::time::sleep(ahead).await;
            }
        }
    }
    if format!("crc32:{:08x}", crc.finalize()) != digest {
        return Err("CRC".into());
    }
    Ok(())
}

/// The pieces of one connection; how many came before the first failure.
async fn connection(o: &Options, t: &Totals, first: u32, many: u32, done: &mut u32) -> Result<(), Failure> {
    let began = Instant::now();
    let mut taken = 0;
    let stream = TcpStream::connect(&o.address).await?;
    let socket = SockRef::from(&stream);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new().with_interval(Duration::from_secs(3)).with_time(Duration::from_secs(5)).with_retries(3),
    )?;
    let (mut reader, writer) = stream.into_split();
    let mut writer = Some(writer);

    for i in 0..many {
        let number = first + i;
        let size = o.sizes[number as usize % o.sizes.len()];
        let id = if o.unknown { format!("{:.<64}", "nothing") } else { task_id(size, number % 7) };
        let w = writer.as_mut().unwrap();
        w.write_all(&request(o.kind, id, number)?).await?;
        w.flush().await?;

        let mut header = BytesMut::zeroed(HEADER_SIZE);
        reader.read_exact(&mut header).await?;
        let header: Header = header.freeze().try_into()?;
        if o.unknown {
            let mut value = BytesMut::zeroed(header.length() as usize);
            reader.read_exact(&mut value).await?;
            if header.tag() != Tag::Error {
                return Err("expected an Error answer".into());
            }
            VortexError::try_from(value.freeze())?;
        } else {
            if header.tag() != o.kind.answer() {
                return Err(format!("answer {:?}", header.tag()).into());
            }
            let value = read_metadata(&mut reader).await?;
            if value.len() != header.length() as usize {
                return Err("header length".into());
            }
            let (n, length, digest) = metadata(o.kind, value)?;
            if n != number || length != size {
                return Err("wrong metadata".into());
            }
            if o.half_close && i + 1 == many {
                drop(writer.take()); // shutdown(SHUT_WR), before the content is read
            }
            content(&mut reader, o, t, size, &digest, began, &mut taken).await?;
        }
        if i + 1 == many {
            drop(writer.take());
            if reader.read(&mut [0u8; 1]).await? != 0 {
                return Err("more than promised".into());
            }
        }
        *done += 1;
    }
    Ok(())
}

async fn worker(o: Arc<Options>, t: Arc<Totals>) {
    loop {
        let first = t.next.fetch_add(o.requests, Relaxed);
        if first >= o.pieces {
            return;
        }
        let many = o.requests.min(o.pieces - first);
        let mut done = 0;
        let r = tokio::time::timeout(o.timeout * many, connection(&o, &t, first, many, &mut done)).await;
        t.ok.fetch_add(done, Relaxed);
        t.errors.fetch_add(many - done, Relaxed);
        match r {
            Err(_) => eprintln!("piece {}: Connection timed out", first + done),
            Ok(Err(e)) => eprintln!("piece {}: {}", first + done, e),
            Ok(Ok(())) => {}
        }
        tokio::time::sleep(o.delay).await;
    }
}

#[tokio::main]
async fn main() {
    let o = Arc::new(options());
    let t = Arc::new(Totals::default());
    let began = Instant::now();
    let workers: Vec<_> = (0..o.concurrency).map(|_| tokio::spawn(worker(o.clone(), t.clone()))).collect();

    for w in workers {
        w.await.unwrap();
    }
    let s = began.elapsed().as_secs_f64();
    let (ok, bytes) = (t.ok.load(Relaxed), t.bytes.load(Relaxed));
    println!(
        "{{\"pieces\":{},\"ok\":{},\"errors\":{},\"bytes\":{},\"seconds\":{:.3},\"pieces_per_s\":{:.1},\"mb_per_s\":{:.1}}}",
        o.pieces, ok, t.errors.load(Relaxed), bytes, s, o.pieces as f64 / s, bytes as f64 / s / 1e6
    );
    std::process::exit(if ok == o.pieces { 0 } else { 1 });
}
