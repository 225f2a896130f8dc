//! `irminsul.Namespace`: what two requests must agree on before they share KV.
//!
//! Knows nothing of registries.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple, PyType};

use crate::failure::Failure;

/// A field, given as text (encoded as UTF-8) or as bytes.
#[derive(Debug, Clone)]
pub(crate) struct Field(Vec<u8>);

impl Field {
    const EMPTY: Self = Self(Vec::new());

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl<'py> FromPyObject<'_, 'py> for Field {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = object.extract::<String>() {
            return Ok(Self(text.into_bytes()));
        }
        let bytes = object.cast::<PyBytes>().map_err(|_| {
            let value = object
                .repr()
                .map_or_else(|_| "?".to_owned(), |text| text.to_string());
            PyTypeError::new_err(format!("it is {value}; allowed: str or bytes"))
        })?;
        Ok(Self(bytes.as_bytes().to_vec()))
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
/// TypeError
///     A field is neither text nor bytes. None is refused too: a tenant that was not found is nobody's.
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
        signature = (
            model=Field::EMPTY, kv_layout=Field::EMPTY, rope=Field::EMPTY, lora=Field::EMPTY, tenant=Field::EMPTY
        ),
        text_signature = "(model='', kv_layout='', rope='', lora='', tenant='')"
    )]
    fn new(
        model: Field,
        kv_layout: Field,
        rope: Field,
        lora: Field,
        tenant: Field,
    ) -> Result<Self, Failure> {
        let fields = [model, kv_layout, rope, lora, tenant];
        let [model, kv_layout, rope, lora, tenant] = fields.each_ref().map(Field::as_bytes);
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
