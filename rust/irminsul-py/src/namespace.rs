//! `irminsul.Namespace`: what two requests must agree on before they share KV.
//!
//! Knows nothing of registries.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple, PyType};

use crate::failure::Failure;

/// A field, given as text (encoded as UTF-8) or as bytes.
#[derive(Debug, Clone, FromPyObject)]
pub(crate) enum Field {
    Text(String),
    Bytes(Vec<u8>),
}

impl Field {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// What two requests must agree on before one may reuse the other's rows.
///
/// Compared as bytes: five length-prefixed fields, so no two different sets of fields are equal.
///
/// Parameters
/// ----------
/// model : str or bytes
///     Identity of the weights: a digest, or path and revision.
/// kv_layout : str or bytes
///     Data type and layout of the rows.
/// rope : str or bytes
///     Rotary configuration, scaling included.
/// lora : str or bytes
///     Adapter.
/// tenant : str or bytes
///     Whoever must not see others' text through cache hits.
///
/// Raises
/// ------
/// InvalidParams
///     A field is longer than 65,536 bytes.
///
/// Examples
/// --------
/// >>> import irminsul
/// >>> irminsul.Namespace(model="a", kv_layout="bc") == irminsul.Namespace(model="ab", kv_layout="c")
/// False
#[pyclass(frozen, eq, hash, module = "irminsul", name = "Namespace")]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Namespace {
    pub(crate) core: irminsul::Namespace,
}

const FIELDS: [&str; 5] = ["model", "kv_layout", "rope", "lora", "tenant"];

#[pymethods]
impl Namespace {
    #[new]
    #[pyo3(
        signature = (model=None, kv_layout=None, rope=None, lora=None, tenant=None),
        text_signature = "(model='', kv_layout='', rope='', lora='', tenant='')"
    )]
    fn new(
        model: Option<Field>,
        kv_layout: Option<Field>,
        rope: Option<Field>,
        lora: Option<Field>,
        tenant: Option<Field>,
    ) -> Result<Self, Failure> {
        let fields = [model, kv_layout, rope, lora, tenant];
        let [model, kv_layout, rope, lora, tenant] = fields
            .each_ref()
            .map(|field| field.as_ref().map_or(&[][..], Field::as_bytes));
        Ok(Self {
            core: irminsul::Namespace::new(model, kv_layout, rope, lora, tenant)?,
        })
    }

    /// Return the bytes that namespaces are compared by: a frozen, versioned format.
    fn encode<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.core.as_bytes())
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyType>, Bound<'py, PyTuple>)> {
        let fields = self.core.fields().map(|field| PyBytes::new(py, field));
        Ok((py.get_type::<Self>(), PyTuple::new(py, fields)?))
    }

    fn __repr__(&self) -> String {
        let shown = FIELDS
            .iter()
            .zip(self.core.fields())
            .filter(|(_, field)| !field.is_empty());
        let shown: Vec<String> = shown
            .map(|(name, field)| format!("{name}={:?}", String::from_utf8_lossy(field)))
            .collect();
        format!("Namespace({})", shown.join(", "))
    }
}
