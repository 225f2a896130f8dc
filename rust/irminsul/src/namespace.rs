//! Model identity and tenant -> one byte string that decides what may share KV.
//!
//! Knows nothing of what the fields mean; it only keeps them apart. The format is frozen
//! (`tests/golden/namespaces.json`).

use crate::error::{Result, check};

/// First bytes of every encoding: the format's name and version.
const MAGIC: &[u8; 5] = b"IRMN\x01";

/// Longest field in bytes.
const MAX_FIELD_BYTES: usize = 1 << 16;

/// What two requests must agree on before one may see the other's KV.
///
/// ```
/// use irminsul::Namespace;
/// let a = Namespace::new(b"deepseek-v2-lite", b"bf16", b"", b"", b"tenant-1")?;
/// let b = Namespace::new(b"deepseek-v2-lite", b"bf16", b"", b"", b"tenant-2")?;
/// assert_ne!(a.as_bytes(), b.as_bytes());
/// # Ok::<(), irminsul::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Namespace {
    encoded: Vec<u8>,
}

impl Namespace {
    /// Encodes the five fields: magic, version, then each field as a 32-bit little-endian byte count and its bytes.
    /// Lengths come first, so ("a", "bc") and ("ab", "c") differ.
    ///
    /// # Errors
    /// `InvalidParams` for a field of more than 65,536 bytes.
    pub fn new(
        model: &[u8],
        kv_layout: &[u8],
        rope: &[u8],
        lora: &[u8],
        tenant: &[u8],
    ) -> Result<Self> {
        let fields = [
            ("length of model", model),
            ("length of kv_layout", kv_layout),
            ("length of rope", rope),
            ("length of lora", lora),
            ("length of tenant", tenant),
        ];
        let mut encoded = MAGIC.to_vec();
        for (name, field) in fields {
            let len = field.len();
            check(
                len <= MAX_FIELD_BYTES,
                name,
                len as i128,
                "at most 65536 bytes",
            )?;
            encoded.extend_from_slice(&(len as u32).to_le_bytes());
            encoded.extend_from_slice(field);
        }
        Ok(Self { encoded })
    }

    /// The five fields in the order of the encoding: model, KV layout, RoPE, LoRA, tenant.
    pub fn fields(&self) -> [&[u8]; 5] {
        let mut rest = &self.encoded[MAGIC.len()..];
        [(); 5].map(|()| {
            let (len, tail) = rest.split_at(4);
            let len = len
                .iter()
                .rev()
                .fold(0, |len, &byte| len << 8 | usize::from(byte));
            let (field, tail) = tail.split_at(len);
            rest = tail;
            field
        })
    }

    /// The last field: who pays for what is recorded here.
    pub(crate) fn tenant(&self) -> &[u8] {
        self.fields()[4]
    }

    /// The encoding; two namespaces are equal when these bytes are.
    pub fn as_bytes(&self) -> &[u8] {
        &self.encoded
    }
}

impl Default for Namespace {
    fn default() -> Self {
        let mut encoded = MAGIC.to_vec();
        encoded.resize(MAGIC.len() + 5 * 4, 0);
        Self { encoded }
    }
}
