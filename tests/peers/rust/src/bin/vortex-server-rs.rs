// SPDX-License-Identifier: Apache-2.0
//! vortex-server-rs: serves generated pieces with tokio, socket2, vortex-protocol and rustix's sendfile (a system call without a libc
//! symbol) as dfdaemon does; options are those of the C server (tests/peers/vortex_server.c).

use bytes::{Bytes, BytesMut};
use rustix::fs::{memfd_create, sendfile, MemfdFlags};
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use std::collections::HashMap;
use std::fs::File;
use std::io::{IoSlice, Write};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{signal, SignalKind};
use vortex_peers::{parse_task_id, size_of, unknown_option, Kind};
use vortex_protocol::tlv::{
    cache_piece_content::CachePieceContent,
    download_piece::DownloadPiece,
    error::{Code, Error as VortexError},
    persistent_cache_piece_content::PersistentCachePieceContent,
    persistent_piece_content::PersistentPieceContent,
    piece_content::PieceContent,
    Tag,
};
use vortex_protocol::{Header, HEADER_SIZE};

#[derive(Clone, Copy)]
enum Mode {
    Sendfile,
    Send,
    Writev,
}

struct Piece {
    file: File,
    crc: u32,
}

struct Server {
    keep: bool,
    rate: u64,
    mode: Mode,
    pieces: Mutex<HashMap<(u64, u32), Arc<Piece>>>,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The same content as the C server's for the same size and seed.
fn generate(size: u64, seed: u32) -> Result<Piece, Failure> {
    let mut file = File::from(memfd_create("piece", MemfdFlags::CLOEXEC)?);
    let mut crc = crc32fast::Hasher::new();
    let mut x = seed.wrapping_mul(2654435761).wrapping_add(12345);
    let mut buf = vec![0u8; 1 << 20];
    let mut left = size;

    while left > 0 {
        let n = left.min(buf.len() as u64) as usize;
        for b in &mut buf[..n] {
            x = x.wrapping_mul(1664525).wrapping_add(1013904223);
            *b = (x >> 24) as u8;
        }
        crc.update(&buf[..n]);
        file.write_all(&buf[..n])?;
        left -= n as u64;
    }
    Ok(Piece { file, crc: crc.finalize() })
}

fn answer(kind: Kind, number: u32, size: u64, crc: u32) -> Bytes {
    let digest = format!("crc32:{crc:08x}");
    let now = chrono::Utc::now().naive_utc();
    macro_rules! of {
        ($t:ty) => {
            <$t>::new(number, number as u64 * size, size, digest, "127.0.0.1-vortex-server-rs".into(), 1, Duration::from_secs(7), now).into()
        };
    }
    let value: Bytes = match kind {
        Kind::Piece => of!(PieceContent),
        Kind::Persistent => of!(PersistentPieceContent),
        Kind::PersistentCache => of!(PersistentCachePieceContent),
        Kind::Cache => of!(CachePieceContent),
    };
    packet(kind.answer(), value)
}

fn packet(tag: Tag, value: Bytes) -> Bytes {
    let header: Bytes = Header::new(tag, value.len() as u32).into();
    let mut b = BytesMut::from(&header[..]);
    b.extend_from_slice(&value);
    b.freeze()
}

impl Server {
    fn piece(&self, size: u64, seed: u32) -> Result<Arc<Piece>, Failure> {
        let mut pieces = self.pieces.lock().unwrap();
        if let Some(p) = pieces.get(&(size, seed)) {
            return Ok(p.clone());
        }
        let p = Arc::new(generate(size, seed)?);
        pieces.insert((size, seed), p.clone());
        Ok(p)
    }

    async fn content(&self, w: &mut OwnedWriteHalf, p: &Piece, size: u64) -> Result<(), Failure> {
        let mut offset = 0;
        let mut buf = vec![0u8; 256 << 10];

        while offset < size {
            let part = if self.rate > 0 { (size - offset).min(self.rate / 20 + 1) } else { size - offset };
            let n = match self.mode {
                Mode::Sendfile => {
                    let stream: &TcpStream = w.as_ref();
                    stream.writable().await?;
                    match stream.try_io(Interest::WRITABLE, || Ok(sendfile(stream, &p.file, Some(&mut offset), part as usize)?)) {
                        Ok(n) => n as u64,
                        Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => continue,
                        Err(e) => return Err(e.into()),
                    }
                }
                Mode::Send | Mode::Writev => {
                    let have = p.file.read_at(&mut buf[..part.min(256 << 10) as usize], offset)?;
                    let n = if let Mode::Send = self.mode {
                        w.write(&buf[..have]).await?
                    } else {
                        w.write_vectored(&[IoSlice::new(&buf[..have / 3]), IoSlice::new(&buf[have / 3..have])]).await?
                    };
                    offset += n as u64;
                    n as u64
                }
            };
            if self.rate > 0 {
                tokio::time::sleep(Duration::from_secs_f64(n as f64 / self.rate as f64)).await;
            }
        }
        Ok(())
    }

    async fn serve(&self, stream: TcpStream) -> Result<(), Failure> {
        let (mut r, mut w) = stream.into_split();
        loop {
            let mut header = BytesMut::zeroed(HEADER_SIZE);
            if r.read_exact(&mut header).await.is_err() {
                return Ok(());
            }
            let header: Header = header.freeze().try_into()?;
            let kind = Kind::of_request(header.tag()).ok_or("unsupported tag")?;
            let mut value = BytesMut::zeroed(header.length() as usize);
            r.read_exact(&mut value).await?;
            // every kind of request has the same value
            let request = DownloadPiece::try_from(value.freeze())?;

            match parse_task_id(request.task_id()) {
                Some((size, seed)) => {
                    let p = self.piece(size, seed)?;
                    w.write_all(&answer(kind, request.piece_number(), size, p.crc)).await?;
                    w.flush().await?;
                    self.content(&mut w, &p, size).await?;
                }
                None => {
                    let e = VortexError::new(Code::NotFound, "unknown task".into());
                    w.write_all(&packet(Tag::Error, e.into())).await?;
                }
            }
            if !self.keep {
                w.shutdown().await?;
                return Ok(());
            }
        }
    }
}

fn listener(address: SocketAddr) -> Result<TcpListener, Failure> {
    let s = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    s.set_reuse_address(true)?;
    s.set_tcp_nodelay(true)?;
    s.set_nonblocking(true)?;
    s.set_tcp_keepalive(&TcpKeepalive::new().with_interval(Duration::from_secs(3)).with_time(Duration::from_secs(5)).with_retries(3))?;
    let _ = s.set_tcp_congestion(b"cubic");
    s.bind(&address.into())?;
    s.listen(1024)?;
    Ok(TcpListener::from_std(s.into())?)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut server = Server { keep: false, rate: 0, mode: Mode::Sendfile, pieces: Mutex::default() };
    let (mut address, mut port_file) = ("127.0.0.1:0".to_string(), None);
    let mut args = std::env::args().skip(1);

    while let Some(a) = args.next() {
        match a.as_str() {
            "--listen" => address = args.next().unwrap(),
            "--port-file" => port_file = args.next(),
            "--keep" => server.keep = true,
            "--rate" => server.rate = size_of(&args.next().unwrap()),
            "--write-mode" => {
                server.mode = match args.next().unwrap().as_str() {
                    "send" => Mode::Send,
                    "writev" => Mode::Writev,
                    _ => Mode::Sendfile,
                }
            }
            _ => unknown_option(&a),
        }
    }
    let l = listener(address.parse()?)?;
    if let Some(f) = port_file {
        std::fs::write(f, format!("{}\n", l.local_addr()?.port()))?;
    }
    let server = Arc::new(server);
    let mut term = signal(SignalKind::terminate())?;
    loop {
        tokio::select! {
            accepted = l.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                let server = server.clone();
                tokio::spawn(async move { let _ = server.serve(stream).await; });
            }
            _ = term.recv() => return Ok(()),
        }
    }
}
