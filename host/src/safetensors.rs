//! Reading a safetensors file: the header first, then only the tensors that are needed.
//!
//! The `safetensors` crate checks shapes and offsets, but its reader needs the whole file in memory and
//! keeps one of two tensors with the same name.

use anyhow::{Context, Result, anyhow, ensure};
use bytemuck::Pod;
use safetensors::tensor::{Metadata as Header, TensorInfo};
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

/// Most bytes of a header, as in the `safetensors` crate.
const MAX_HEADER: u64 = 100_000_000;

/// Most names that a message lists.
const LISTED: usize = 8;

/// A file or pipe with a correct header.
pub struct SafeTensors {
    file: File,
    /// Of the open file; its device and inode identify it.
    pub metadata: Metadata,
    header: Header,
    /// Where the next read begins, from the end of the header.
    position: usize,
}

impl SafeTensors {
    /// Reads the header.
    ///
    /// # Errors
    /// If it cannot be read or is wrong, or if the file has another length than the header says.
    pub fn open(path: &Path) -> Result<Self> {
        let mut file = File::open(path)?;
        let metadata = file.metadata()?;
        let wrong = "not a valid safetensors file";
        let header = read_header(&mut file, &metadata).context(wrong)?;
        Ok(SafeTensors {
            file,
            metadata,
            header,
            position: 0,
        })
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.header.info(name).is_some()
    }

    /// The dtype, shape and place of a tensor.
    ///
    /// # Errors
    /// If there is none of this name.
    pub fn info(&self, name: &str) -> Result<&TensorInfo> {
        self.header.info(name).ok_or_else(|| {
            let names = self.header.offset_keys();
            let mut list = names[..names.len().min(LISTED)].join(", ");
            if names.len() > LISTED {
                list += &format!(" and {} others", names.len() - LISTED);
            }
            anyhow!("it has no tensor {name}; its tensors are: {list}")
        })
    }

    /// Reads and converts the elements of a tensor. From a pipe, tensors must be read in the order of
    /// their offsets.
    ///
    /// # Errors
    /// If the file ends too early or cannot be read.
    pub fn read<S: Pod, T>(
        &mut self,
        info: &TensorInfo,
        convert: impl Fn(S) -> T,
    ) -> io::Result<Vec<T>> {
        const CHUNK: usize = 1 << 14;
        let (start, end) = info.data_offsets;
        self.skip_to(start)?;
        let len = (end - start) / size_of::<S>();
        let mut numbers = Vec::new();
        numbers.try_reserve_exact(len)?;
        let mut chunk = vec![S::zeroed(); CHUNK.min(len)];
        while numbers.len() < len {
            let rest = CHUNK.min(len - numbers.len());
            self.file
                .read_exact(bytemuck::cast_slice_mut(&mut chunk[..rest]))?;
            numbers.extend(chunk[..rest].iter().map(|&number| convert(number)));
        }
        self.position = end;
        Ok(numbers)
    }

    fn skip_to(&mut self, position: usize) -> io::Result<()> {
        let distance = position as i64 - self.position as i64;
        if let Err(error) = self.file.seek(SeekFrom::Current(distance)) {
            // A pipe cannot seek.
            let distance = u64::try_from(distance).map_err(|_| error)?;
            io::copy(&mut (&self.file).take(distance), &mut io::sink())?;
        }
        self.position = position;
        Ok(())
    }
}

fn read_header(file: &mut File, metadata: &Metadata) -> Result<Header> {
    let length = metadata.is_file().then_some(metadata.len());
    let mut bytes = [0; 8];
    file.read_exact(&mut bytes)
        .map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => anyhow!("it ends before its header"),
            _ => error.into(),
        })?;
    let header_length = u64::from_le_bytes(bytes);
    let rest = length.map_or(u64::MAX, |length| length.saturating_sub(8));
    ensure!(
        header_length <= rest.min(MAX_HEADER),
        "its header would have {header_length} bytes"
    );
    let mut text = Vec::new();
    file.take(header_length).read_to_end(&mut text)?;
    ensure!(
        text.len() as u64 == header_length,
        "it ends within its header"
    );
    let header = parse(&text).context("its header is wrong")?;
    let expected = (8 + header_length).saturating_add(header.data_len() as u64);
    if let Some(length) = length {
        ensure!(
            length == expected,
            "it has {length} bytes; its header tells of {expected}"
        );
    }
    Ok(header)
}

fn parse(text: &[u8]) -> Result<Header> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let tensors = json.deserialize_map(Tensors)?;
    json.end()?;
    Ok(Header::new(None, tensors)?)
}

/// Reads the tensors of a header, each name once, in the order of their offsets.
struct Tensors;

impl<'de> Visitor<'de> for Tensors {
    type Value = Vec<(String, TensorInfo)>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut tensors = BTreeMap::<String, TensorInfo>::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<HashMap<String, String>>()?;
            } else if tensors.insert(name.clone(), map.next_value()?).is_some() {
                return Err(A::Error::custom(format!("tensor {name:?} is there twice")));
            }
        }
        let mut tensors = Vec::from_iter(tensors);
        tensors.sort_by_key(|(_, info)| info.data_offsets);
        Ok(tensors)
    }
}

#[cfg(test)]
mod tests {
    use super::SafeTensors;
    use std::io::Write;

    /// Whatever a header says, reading ends, and gives as many bytes as shape and dtype say.
    #[test]
    fn headers_with_a_wrong_byte_are_refused_or_right() {
        let header = r#"{"q":{"dtype":"F16","shape":[1,1,2,8],"data_offsets":[0,32]},"__metadata__":{"a":"b"},"k":{"dtype":"U8","shape":[],"data_offsets":[32,33]}}"#;
        let length = (header.len() as u64).to_le_bytes();
        let whole = [&length, header.as_bytes(), &[0; 33]].concat();
        let (mut right, mut wrong) = (0, 0);
        for place in 0..8 + header.len() {
            for byte in *b"\x00\x01\xff09{}[]\",:-e " {
                let mut bytes = whole.clone();
                bytes[place] = byte;
                let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
                file.write_all(&bytes).expect("a writable file");
                let Ok(mut file) = SafeTensors::open(file.path()) else {
                    wrong += 1;
                    continue;
                };
                right += 1;
                for name in ["k", "q"] {
                    let Ok(info) = file.info(name).cloned() else {
                        continue;
                    };
                    let data = file.read(&info, |byte: u8| byte).expect("all bytes");
                    let bits = info.shape.iter().product::<usize>() * info.dtype.bitsize();
                    assert_eq!(data, vec![0; bits / 8]);
                }
            }
        }
        assert!(right > 0 && wrong > right, "{right} right, {wrong} wrong");
    }
}
