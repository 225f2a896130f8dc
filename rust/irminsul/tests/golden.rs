//! Golden vectors -> agreement of the frozen formats with the slow references that wrote them.
//!
//! The Python tests read the same files.

mod support;

use irminsul::{ChunkParams, Namespace, chunk, fingerprint, gear};
use serde::Deserialize;
use support::{Part, expand, golden};

#[derive(Deserialize)]
struct Params {
    min: u32,
    avg: u32,
    max: u32,
    secret: u32,
}

#[derive(Deserialize)]
struct ChunkVector {
    name: String,
    params: Params,
    tokens: Vec<Part>,
    bounds: Vec<usize>,
    fingerprints: Vec<String>,
}

#[derive(Deserialize)]
struct GearVector {
    token: u32,
    value: String,
}

#[derive(Deserialize)]
struct FingerprintVector {
    tokens: Vec<Part>,
    fingerprint: String,
}

#[derive(Deserialize)]
struct NamespaceVector {
    fields: [String; 5],
    encoding: String,
}

fn hex(value: u64) -> String {
    format!("{value:016x}")
}

#[test]
fn chunks() {
    let vectors: Vec<ChunkVector> = golden("chunks.json");
    assert!(vectors.len() > 200);
    for vector in vectors {
        let Params {
            min,
            avg,
            max,
            secret,
        } = vector.params;
        let params = ChunkParams::new(min, avg, max, secret).expect("valid parameters");
        let chunks = chunk(&expand(&vector.tokens), &params);
        assert_eq!(chunks.bounds(), vector.bounds, "{}", vector.name);
        let fingerprints: Vec<String> = chunks.fingerprints().iter().map(|&f| hex(f)).collect();
        assert_eq!(fingerprints, vector.fingerprints, "{}", vector.name);
    }
}

#[test]
fn gear_values() {
    for vector in golden::<Vec<GearVector>>("gear.json") {
        assert_eq!(
            hex(gear::mix(vector.token)),
            vector.value,
            "token {}",
            vector.token
        );
    }
}

#[test]
fn fingerprints() {
    for vector in golden::<Vec<FingerprintVector>>("fingerprints.json") {
        assert_eq!(
            hex(fingerprint(&expand(&vector.tokens))),
            vector.fingerprint
        );
    }
}

#[test]
fn namespaces() {
    for vector in golden::<Vec<NamespaceVector>>("namespaces.json") {
        let fields = vector.fields.each_ref().map(String::as_bytes);
        let [model, kv_layout, rope, lora, tenant] = fields;
        let namespace = Namespace::new(model, kv_layout, rope, lora, tenant).expect("short fields");
        let bytes = namespace.as_bytes().iter();
        let encoding = bytes.fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
        assert_eq!(encoding, vector.encoding);
        assert_eq!(namespace.fields(), fields);
    }
}
