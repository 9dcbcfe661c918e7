//! The messages of TensorBoard's event files, as far as scalars need them (`event.proto`,
//! `summary.proto`, `tensor.proto` of TensorFlow).

use prost::Message;

#[derive(Message)]
pub(super) struct Event {
    /// The Unix time.
    #[prost(double, tag = "1")]
    pub(super) wall_time: f64,
    #[prost(message, optional, tag = "5")]
    pub(super) summary: Option<Summary>,
}

#[derive(Message)]
pub(super) struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub(super) value: Vec<Value>,
}

#[derive(Message)]
pub(super) struct Value {
    #[prost(string, tag = "1")]
    pub(super) tag: String,
    /// `simple_value`.
    #[prost(float, optional, tag = "2")]
    simple: Option<f32>,
    #[prost(message, optional, tag = "8")]
    pub(super) tensor: Option<Tensor>,
}

#[derive(Message)]
pub(super) struct Tensor {
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(bytes = "vec", tag = "4")]
    content: Vec<u8>,
    #[prost(float, repeated, tag = "5")]
    floats: Vec<f32>,
    #[prost(double, repeated, tag = "6")]
    doubles: Vec<f64>,
    #[prost(int32, repeated, tag = "7")]
    ints: Vec<i32>,
    #[prost(int64, repeated, tag = "10")]
    longs: Vec<i64>,
}

impl Value {
    /// Returns its number, if it is one.
    pub(super) fn number(&self) -> Option<f64> {
        self.simple.map(f64::from).or_else(|| self.tensor.as_ref()?.number())
    }
}

impl Tensor {
    /// Returns the one number that it is, in any of its forms.
    fn number(&self) -> Option<f64> {
        const FLOAT: i32 = 1;
        const DOUBLE: i32 = 2;
        const INT32: i32 = 3;
        const INT64: i32 = 9;
        let content = self.content.as_slice();
        match (self.dtype, content) {
            (FLOAT, []) => only(&self.floats).map(f64::from),
            (DOUBLE, []) => only(&self.doubles),
            (INT32, []) => only(&self.ints).map(f64::from),
            (INT64, []) => only(&self.longs).and_then(of_long),
            (FLOAT, _) => content.try_into().ok().map(|of| f64::from(f32::from_le_bytes(of))),
            (DOUBLE, _) => content.try_into().ok().map(f64::from_le_bytes),
            (INT32, _) => content.try_into().ok().map(|of| f64::from(i32::from_le_bytes(of))),
            (INT64, _) => of_long(i64::from_le_bytes(content.try_into().ok()?)),
            _ => None,
        }
    }
}

fn only<T: Copy>(numbers: &[T]) -> Option<T> {
    match numbers {
        [only] => Some(*only),
        _ => None,
    }
}

/// Returns a whole number that a float has exactly.
fn of_long(number: i64) -> Option<f64> {
    u64::try_from(number)
        .ok()
        .and_then(|number| Some(stepmem_types::units::Bytes::new(number).ok()?.as_f64()))
}
