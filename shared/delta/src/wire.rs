//! The path-compressed form of an ordered stream of batches, as Chord's services send it.
//!
//! One [`Encoder`] and one [`Decoder`] belong to one stream. A path that is used a second time gets a number by a
//! definition `["#", id, path]`; the path of the operation before in the same batch is left out. A replacement of the
//! whole value clears all of that. Storage does not use this form: it keeps decoded operations.

use std::collections::HashMap;
use std::sync::Arc;

use crate::json::Json;
use crate::op::{
    Op, OpError, OpErrorKind, Path, check_path, count_from_json, items_from_json, order_from_json, path_from_json, path_to_json,
    split_tuple, text_from_json,
};

/// Paths that an encoder remembers and a decoder takes. Further ones are always written out, so that a long stream cannot grow either end.
const PATHS_MAX: usize = 65_536;

/// The sending end of a stream.
#[derive(Debug, Default)]
pub struct Encoder {
    paths: HashMap<Path, Known>,
    next: u64,
}

#[derive(Debug, Clone, Copy)]
enum Known {
    UsedOnce,
    Numbered(u64),
}

impl Encoder {
    /// An encoder for a new stream.
    pub fn new() -> Encoder {
        Encoder::default()
    }

    /// The compressed form of the stream's next batch: an array of tuples.
    pub fn encode(&mut self, ops: &[Op]) -> Json {
        let mut out = Vec::with_capacity(ops.len());
        let mut previous: Option<&Path> = None;
        for op in ops {
            let Some(path) = op.path() else {
                *self = Encoder::default();
                previous = None;
                out.push(op.to_json());
                continue;
            };
            let verb = Json::from(op.verb());
            let head = if previous == Some(path) { vec![verb] } else { vec![verb, self.name(path, &mut out)] };
            out.push(head.into_iter().chain(op.arguments()).collect());
            previous = Some(path);
        }
        Json::from(out)
    }

    fn name(&mut self, path: &Path, out: &mut Vec<Json>) -> Json {
        match self.paths.get_mut(path) {
            Some(Known::Numbered(id)) => Json::from(*id),
            Some(known) => {
                let id = self.next;
                self.next += 1;
                *known = Known::Numbered(id);
                out.push(Json::from([Json::from("#"), Json::from(id), path_to_json(path)]));
                Json::from(id)
            }
            None => {
                if self.paths.len() < PATHS_MAX {
                    self.paths.insert(path.clone(), Known::UsedOnce);
                }
                path_to_json(path)
            }
        }
    }
}

/// The receiving end of a stream.
#[derive(Debug, Default)]
pub struct Decoder {
    paths: HashMap<usize, Arc<Path>>,
}

impl Decoder {
    /// A decoder for a new stream.
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// The operations of the stream's next batch. After an error the stream is lost: discard the decoder with it.
    ///
    /// # Errors
    ///
    /// `Type` for the shape; `UnsafePath` for a path; `Path` for an unknown number, a path left out without one
    /// before, an empty path where there must be one, or more defined paths than the 65,536 that an encoder remembers.
    pub fn decode(&mut self, batch: &Json) -> Result<Vec<Op>, OpError> {
        let Some(tuples) = batch.as_array() else {
            return Err(OpError::shape(format!("a batch is an array of operations, found {}", batch.kind_name())));
        };
        let mut ops = Vec::with_capacity(tuples.len());
        let mut previous: Option<Arc<Path>> = None;
        for tuple in tuples {
            let (verb, rest) = split_tuple(tuple)?;
            match (&*verb, &*rest) {
                ("#", [id, path]) => self.define(id, path)?,
                ("r", [value]) => {
                    self.paths.clear();
                    previous = None;
                    ops.push(Op::Replace((*value).clone()));
                }
                (verb, rest) => {
                    let (path, arguments) = self.path(verb, rest, previous.as_ref())?;
                    ops.push(operation(verb, &path, arguments)?);
                    previous = Some(path);
                }
            }
        }
        Ok(ops)
    }

    fn define(&mut self, id: &Json, path: &Json) -> Result<(), OpError> {
        let id = count_from_json(id, "path number")?;
        let path = path_from_json(path)?;
        check_path(&path)?;
        if self.paths.len() >= PATHS_MAX && !self.paths.contains_key(&id) {
            let detail = format!("more than {PATHS_MAX} paths are defined; write further ones out, or replace the whole value");
            return Err(OpError::new(OpErrorKind::Path, detail));
        }
        self.paths.insert(id, Arc::new(path));
        Ok(())
    }

    /// The path of an operation, and what follows it.
    fn path<'a>(&self, verb: &str, rest: &'a [&'a Json], previous: Option<&Arc<Path>>) -> Result<(Arc<Path>, &'a [&'a Json]), OpError> {
        let arguments = match verb {
            "d" => 0,
            "s" | "a" | "t" | "m" => 1,
            "p" => 3,
            _ => return Err(OpError::shape(format!("verb {verb:?} is unknown or has the wrong number of elements"))),
        };
        if rest.len() == arguments {
            let previous = previous
                .ok_or_else(|| OpError::new(OpErrorKind::Path, format!("{verb:?} leaves its path out, but there is none before")))?;
            return Ok((Arc::clone(previous), rest));
        }
        let Some((path, rest)) = rest.split_first().filter(|(_, rest)| rest.len() == arguments) else {
            return Err(OpError::shape(format!("{verb:?} has the wrong number of elements: {}", rest.len() + 1)));
        };
        if path.as_array().is_some() {
            let path = path_from_json(path)?;
            check_path(&path)?;
            return Ok((Arc::new(path), rest));
        }
        let id = count_from_json(path, "path number")?;
        match self.paths.get(&id) {
            Some(path) => Ok((Arc::clone(path), rest)),
            None => Err(OpError::new(OpErrorKind::Path, format!("path number {id} was not defined"))),
        }
    }
}

fn operation(verb: &str, path: &Path, arguments: &[&Json]) -> Result<Op, OpError> {
    if path.is_empty() && matches!(verb, "s" | "d" | "a" | "t") {
        return Err(OpError::new(OpErrorKind::Path, format!("{verb:?} has an empty path; use \"r\" for the root")));
    }
    let path = path.clone();
    let op = match (verb, arguments) {
        ("s", [value]) => Op::Set(path, (*value).clone()),
        ("d", []) => Op::Delete(path),
        ("a", [text]) => Op::Append(path, text_from_json(text)?),
        ("t", [count]) => Op::TrimUtf16(path, count_from_json(count, "count")?),
        ("p", [index, remove, items]) => Op::Splice {
            path,
            index: count_from_json(index, "index")?,
            remove: count_from_json(remove, "remove count")?,
            items: items_from_json(items)?,
        },
        ("m", [order]) => Op::Move(path, order_from_json(order)?),
        _ => return Err(OpError::shape(format!("verb {verb:?} is unknown or has the wrong number of elements"))),
    };
    op.validate()?;
    Ok(op)
}
