//! The public functions, methods and traits of crates, by their sources; what macros write is not seen.

pub mod listing;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::{Attribute, FnArg, Item, ItemImpl, Signature, Type, UseTree, Visibility};

/// Facts of a function that the test asks for.
pub struct Function {
    /// Whether it is safe and takes something that could be wrong: a number, a tensor, or fields that anyone can set.
    pub may_be_wrong: bool,
    pub is_unsafe: bool,
    /// Whether its documentation has a section on safety.
    pub says_safety: bool,
}

/// Path of a module or an item: crate, modules, name.
type Place = Vec<String>;

/// All modules of some crates, and what of the first one's programs can name.
pub struct Interface {
    modules: BTreeMap<Place, Vec<Item>>,
    /// Items, and modules whose public items all count.
    exported: BTreeSet<Place>,
}

impl Interface {
    /// Reads crates of the workspace. The first one's interface counts, with what it takes from the others.
    pub fn read(crates: &[&str]) -> Self {
        let mut interface = Interface {
            modules: BTreeMap::new(),
            exported: BTreeSet::new(),
        };
        for name in crates {
            let sources = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("..")
                .join(name)
                .join("src");
            interface.load(vec![(*name).to_owned()], sources.join("lib.rs"), &sources);
        }
        interface.export(&[crates[0].to_owned()]);
        interface
    }

    /// Reads a module and those that it declares in files of their own or in place.
    fn load(&mut self, place: Place, file: PathBuf, folder: &Path) {
        let text =
            std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
        let items = syn::parse_file(&text)
            .unwrap_or_else(|error| panic!("{file:?}: {error}"))
            .items;
        self.add(place, items, folder);
    }

    fn add(&mut self, place: Place, items: Vec<Item>, folder: &Path) {
        let declared = items.iter().filter_map(|item| match item {
            Item::Mod(module) if !is_test(&module.attrs) => Some(module.clone()),
            _ => None,
        });
        for module in declared.collect::<Vec<_>>() {
            let name = module.ident.to_string();
            let (inner, folder) = (
                [&place[..], std::slice::from_ref(&name)].concat(),
                folder.join(&name),
            );
            match module.content {
                Some((_, items)) => self.add(inner, items, &folder),
                None if folder.join("mod.rs").exists() => {
                    self.load(inner, folder.join("mod.rs"), &folder);
                }
                None => self.load(inner, folder.with_extension("rs"), &folder),
            }
        }
        self.modules.insert(place, items);
    }

    /// Exports what a module shows: its public items and modules, and what it re-exports.
    fn export(&mut self, place: &[String]) {
        if !self.modules.contains_key(place) {
            self.exported.insert(place.to_vec());
            return;
        }
        if !self.exported.insert(place.to_vec()) {
            return;
        }
        let mut shown = Vec::new();
        for item in &self.modules[place] {
            match item {
                Item::Use(item) if is_pub(&item.vis) => {
                    let mut paths = Vec::new();
                    leaves(&item.tree, Vec::new(), &mut paths);
                    shown.extend(paths.into_iter().map(|path| self.resolve(place, path)));
                }
                Item::Mod(module) if is_pub(&module.vis) => {
                    shown.push([place, &[module.ident.to_string()]].concat());
                }
                _ => shown.extend(public_name(item).map(|name| [place, &[name]].concat())),
            }
        }
        shown.iter().for_each(|place| self.export(place));
    }

    /// The item or module that a path names in a module, through re-exports of others.
    fn resolve(&self, from: &[String], path: Vec<String>) -> Place {
        let (first, rest) = path.split_first().expect("a name");
        let child = [from, std::slice::from_ref(first)].concat();
        let start = match first.as_str() {
            "crate" => from[..1].to_vec(),
            "self" => from.to_vec(),
            "super" => from[..from.len() - 1].to_vec(),
            _ if self.modules.contains_key(&child) => child,
            // Another crate, or an item of the module.
            _ if rest.is_empty() && !self.modules.contains_key(&path[..]) => child,
            name => vec![name.to_owned()],
        };
        let place = [&start[..], rest].concat();
        self.followed(place)
    }

    /// Where an item is defined that a module only re-exports.
    fn followed(&self, place: Place) -> Place {
        let Some((name, module)) = place.split_last() else {
            return place;
        };
        let Some(of) = self
            .modules
            .get(module)
            .filter(|_| !self.modules.contains_key(&place))
        else {
            return place;
        };
        match imported(of, name) {
            Some(path) => self.resolve(module, path),
            None => place,
        }
    }

    /// Every function that a program can call or write, by its type's or module's name and its own.
    pub fn functions(&self) -> BTreeMap<String, Function> {
        let mut functions = BTreeMap::new();
        for (place, module) in &self.modules {
            for item in module {
                match item {
                    Item::Fn(item) if self.shows(place, &item.sig.ident.to_string()) => {
                        let module = place[place.len().saturating_sub(2)..].join("::");
                        let name = format!("{module}::{}", item.sig.ident);
                        functions.insert(name, function(&item.sig, &item.attrs, false));
                    }
                    Item::Trait(item) if self.shows(place, &item.ident.to_string()) => {
                        functions.insert(format!("trait {}", item.ident), function_of_trait(item));
                        for method in &item.items {
                            if let syn::TraitItem::Fn(method) = method {
                                let name = format!("{}::{}", item.ident, method.sig.ident);
                                functions.insert(name, function(&method.sig, &method.attrs, false));
                            }
                        }
                    }
                    Item::Impl(item) if item.trait_.is_none() => {
                        self.methods(place, item, &mut functions);
                    }
                    _ => (),
                }
            }
        }
        functions
    }

    /// The methods that an `impl` gives a type that programs can name.
    fn methods(&self, place: &[String], item: &ItemImpl, to: &mut BTreeMap<String, Function>) {
        let Type::Path(path) = &*item.self_ty else {
            return;
        };
        let name = path.path.segments.last().expect("a name").ident.to_string();
        let Some(of) = self.type_place(place, &name) else {
            return;
        };
        let open = self.has_public_fields(&of);
        // Types of one name are told apart by their modules.
        let alike = self
            .exported
            .iter()
            .filter(|other| other.last() == of.last() && self.defines(other));
        let prefix = match alike.count() {
            1 => of[of.len() - 1].clone(),
            _ => of[of.len() - 3..].join("::"),
        };
        for method in &item.items {
            if let syn::ImplItem::Fn(method) = method
                && is_pub(&method.vis)
            {
                let name = format!("{prefix}::{}", method.sig.ident);
                to.insert(name, function(&method.sig, &method.attrs, open));
            }
        }
    }

    /// Whether a type is defined at a place.
    fn defines(&self, place: &[String]) -> bool {
        let (name, module) = place.split_last().expect("a name");
        let items = self.modules.get(module).into_iter().flatten();
        items.filter_map(type_name).any(|defined| defined == *name)
    }

    /// The place of the type that a module means by a name, if programs can name it.
    fn type_place(&self, module: &[String], name: &str) -> Option<Place> {
        let mut place = self.resolve(module, vec![name.to_owned()]);
        while let Some(target) = self.alias(&place) {
            place = self.resolve(&place[..place.len() - 1], vec![target]);
        }
        (self.exported.contains(&place) && self.defines(&place)).then_some(place)
    }

    /// The name of the type that an alias at a place stands for.
    fn alias(&self, place: &[String]) -> Option<String> {
        let (name, module) = place.split_last()?;
        self.modules
            .get(module)?
            .iter()
            .find_map(|item| match item {
                Item::Type(item) if item.ident == name => match &*item.ty {
                    Type::Path(path) => Some(path.path.segments.last()?.ident.to_string()),
                    _ => None,
                },
                _ => None,
            })
    }

    fn shows(&self, place: &[String], name: &str) -> bool {
        self.exported
            .contains(&[place, &[name.to_owned()]].concat())
    }

    fn has_public_fields(&self, place: &[String]) -> bool {
        let (name, module) = place.split_last().expect("a name");
        self.modules[module].iter().any(|item| match item {
            Item::Struct(item) => {
                item.ident == name && item.fields.iter().any(|field| is_pub(&field.vis))
            }
            _ => false,
        })
    }
}

/// The path by which a module imports a name.
fn imported(items: &[Item], name: &str) -> Option<Place> {
    let mut paths = Vec::new();
    for item in items {
        if let Item::Use(item) = item {
            leaves(&item.tree, Vec::new(), &mut paths);
        }
    }
    let is_named = |path: &Place| path.len() > 1 && path.last().is_some_and(|last| last == name);
    paths.into_iter().find(is_named)
}

fn function(signature: &Signature, attributes: &[Attribute], open: bool) -> Function {
    let has_arguments = signature.inputs.iter().any(|argument| match argument {
        FnArg::Receiver(_) => open,
        FnArg::Typed(argument) => {
            !matches!(&*argument.ty, Type::Path(ty) if ty.path.is_ident("bool"))
        }
    });
    Function {
        may_be_wrong: has_arguments && signature.unsafety.is_none(),
        is_unsafe: signature.unsafety.is_some(),
        says_safety: says_safety(attributes),
    }
}

fn function_of_trait(item: &syn::ItemTrait) -> Function {
    Function {
        may_be_wrong: false,
        is_unsafe: item.unsafety.is_some(),
        says_safety: says_safety(&item.attrs),
    }
}

fn says_safety(attributes: &[Attribute]) -> bool {
    let lines = attributes
        .iter()
        .filter_map(|attribute| match &attribute.meta {
            syn::Meta::NameValue(line) if line.path.is_ident("doc") => Some(&line.value),
            _ => None,
        });
    lines.into_iter().any(|line| matches!(
        line,
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) if text.value().trim() == "# Safety"
    ))
}

fn is_pub(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .parse_args::<syn::Ident>()
                .is_ok_and(|name| name == "test")
    })
}

fn type_name(item: &Item) -> Option<String> {
    match item {
        Item::Struct(item) => Some(item.ident.to_string()),
        Item::Enum(item) => Some(item.ident.to_string()),
        _ => None,
    }
}

fn public_name(item: &Item) -> Option<String> {
    let (visibility, name) = match item {
        Item::Fn(item) => (&item.vis, &item.sig.ident),
        Item::Struct(item) => (&item.vis, &item.ident),
        Item::Enum(item) => (&item.vis, &item.ident),
        Item::Trait(item) => (&item.vis, &item.ident),
        Item::Type(item) => (&item.vis, &item.ident),
        _ => return None,
    };
    is_pub(visibility).then(|| name.to_string())
}

/// The paths that a `use` names, by the names of where they come from.
fn leaves(tree: &UseTree, mut path: Place, to: &mut Vec<Place>) {
    match tree {
        UseTree::Path(inner) => {
            path.push(inner.ident.to_string());
            leaves(&inner.tree, path, to);
        }
        UseTree::Name(name) if name.ident == "self" => to.push(path),
        UseTree::Name(name) => to.push([path, vec![name.ident.to_string()]].concat()),
        UseTree::Rename(name) => to.push([path, vec![name.ident.to_string()]].concat()),
        UseTree::Group(group) => group
            .items
            .iter()
            .for_each(|tree| leaves(tree, path.clone(), to)),
        UseTree::Glob(_) => to.push(path),
    }
}
