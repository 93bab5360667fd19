/* What is known of an op, and its arithmetic on small arrays: the loops of its ufunc, called without the ufunc. */

typedef struct {
    PyUFuncGenericFunction loop;
    void *data;
    int result;  /* the type number of the output; -1: there is no such loop */
} Loop;

/* The gradient rules of small arrays that are written here; an op names its own by `Op.small_vjp`. */
enum { NO_RULE, RULE_ADD, RULE_SUB, RULE_MUL, RULE_DIV, RULE_NEG, RULE_TANH, RULE_SIGMOID, RULE_RELU, RULE_EXP, RULE_LOG,
       RULE_SQRT, RULE_SQUARE, RULE_MATMUL, RULE_RESHAPE };
static const char *const RULES[] = {"", "add", "sub", "mul", "div", "neg", "tanh", "sigmoid", "relu", "exp", "log", "sqrt",
                                    "square", "matmul", "reshape"};

typedef struct {
    PyObject_HEAD
    PyObject *op;                           /* borrowed: the op owns its core */
    PyObject *forward, *second, *vjp, *large;
    PyObject *plans, *gradient_plans;       /* on a device, for the backend number `epoch`; NULL: none */
    unsigned epoch;
    Py_ssize_t large_from, large_vjp_from, direct_below;
    Loop loops[2];                          /* of float32 and of float64 */
    signed char keep[8][MOST_INPUTS + 1], known[8];
    char broadcasts, view, dot, arity, is_ufunc, rule, rules, reshapes, part;
} Core;
static PyTypeObject *CoreType;

static void core_dealloc(Core *core) {
    PyTypeObject *type = Py_TYPE(core);
    Py_XDECREF(core->forward);
    Py_XDECREF(core->second);
    Py_XDECREF(core->vjp);
    Py_XDECREF(core->large);
    Py_XDECREF(core->plans);
    Py_XDECREF(core->gradient_plans);
    type->tp_free((PyObject *)core);
    Py_DECREF(type);
}

static void find_loops(Core *core, PyObject *ufunc, int constants) {
    PyUFuncObject *u = (PyUFuncObject *)ufunc;
    char const types[2] = {NPY_FLOAT32, NPY_FLOAT64};
    if (u->nout != 1 || u->nin > 2 || u->core_enabled) return;
    core->arity = (char)(u->nin - constants);
    for (int which = 0; which < 2; which++)
        for (int i = 0; i < u->ntypes; i++) {
            char const *signature = u->types + i * u->nargs;
            if (signature[0] != types[which] || (u->nin == 2 && signature[1] != types[which])) continue;
            core->loops[which] = (Loop){u->functions[i], u->data == NULL ? NULL : (void *)u->data[i], signature[u->nin]};
            break;
        }
}

/* `forward.small`, where a forward has it: (ufunc, below, second operand or None) for a forward that is this ufunc on
   fewer elements; ("dot", below) for a product of matrices that is np.dot for fewer elements of both together. */
static int read_small(Core *core) {
    PyObject *small = PyObject_GetAttrString(core->forward, "small");
    if (small == NULL) { PyErr_Clear(); return 0; }
    if (PyCallable_Check(small)) Py_SETREF(small, PyObject_CallNoArgs(small));
    if (small == NULL) return -1;
    PyObject *what = PyTuple_GetItem(small, 0), *below = PyTuple_GetItem(small, 1);
    if (what == NULL || below == NULL) { Py_DECREF(small); return -1; }
    core->direct_below = PyLong_AsSsize_t(below);
    if (PyUnicode_Check(what)) core->dot = 1;
    else {
        PyObject *second = PyTuple_GetItem(small, 2);
        if (second == NULL) { Py_DECREF(small); return -1; }
        if (second != Py_None) core->second = Py_NewRef(second);  /* {dtype: 0-dim array} */
        find_loops(core, what, core->second != NULL);
    }
    Py_DECREF(small);
    return 0;
}

static Core *core_of(PyObject *op) {
    PyObject *found = AT(op, O.native);
    if (IS_A(found, CoreType)) {
        Core *known = (Core *)found;
        /* A test or a tool may have replaced a part of the record; a shallow copy has the Core of another one. */
        if (known->op == op && known->forward == AT(op, O.forward) && known->vjp == AT(op, O.vjp)
            && known->large == AT(op, O.large_from)) return known;
    }
    PyObject *forward = filled(op, O.forward, "forward"), *vjp = forward ? filled(op, O.vjp, "vjp") : NULL;
    PyObject *large = vjp ? filled(op, O.large_from, "large_from") : NULL, *moves = AT(op, O.moves), *small = AT(op, O.small_vjp);
    PyObject *large_vjp = large ? filled(op, O.large_vjp_from, "large_vjp_from") : NULL;
    Py_ssize_t large_from = large_vjp ? PyLong_AsSsize_t(large) : -1, large_vjp_from = large_vjp ? PyLong_AsSsize_t(large_vjp) : -1;
    if (PyErr_Occurred()) return NULL;
    Core *core = (Core *)CoreType->tp_alloc(CoreType, 0);
    if (core == NULL) return NULL;
    core->op = op;
    core->forward = Py_NewRef(forward);
    core->vjp = Py_NewRef(vjp);
    core->large = Py_NewRef(large);
    core->large_from = large_from;
    core->large_vjp_from = large_vjp_from;
    core->direct_below = core->large_from;
    core->broadcasts = AT(op, O.broadcasts) == Py_True;
    core->view = AT(op, O.view) == Py_True;
    core->loops[0].result = core->loops[1].result = -1;
    core->rules = PyTuple_CheckExact(core->vjp) ? (char)PyTuple_GET_SIZE(core->vjp) : 0;
    core->is_ufunc = PyObject_TypeCheck(core->forward, &PyUFunc_Type);
    core->part = IS_A(moves, &PyUnicode_Type) && PyUnicode_CompareWithASCIIString(moves, "part") == 0;
    for (int i = 1; i < (int)(sizeof RULES / sizeof *RULES); i++)
        if (IS_A(small, &PyUnicode_Type) && PyUnicode_CompareWithASCIIString(small, RULES[i]) == 0) core->rule = (char)i;
    if (core->is_ufunc) find_loops(core, core->forward, 0);
    else if (read_small(core) < 0) { Py_DECREF(core); return NULL; }
    replace(op, O.native, (PyObject *)core);
    return core;
}

/* What a node keeps of the output and of each input, when the inputs of the bits `needs` want a gradient. */
static signed char *keeps_of(Core *core, int needs, int arity) {
    if (core->known[needs]) return core->keep[needs];
    PyObject *wanted = PyTuple_New(arity);
    if (wanted == NULL) return NULL;
    for (int i = 0; i < arity; i++) PyTuple_SET_ITEM(wanted, i, Py_NewRef(needs >> i & 1 ? Py_True : Py_False));
    PyObject *how = PyObject_CallMethod(core->op, "keeps", "(O)", wanted);
    Py_DECREF(wanted);
    if (how == NULL) return NULL;
    PyObject *inputs = PyTuple_GetItem(how, 1);
    core->keep[needs][0] = (signed char)PyLong_AsLong(PyTuple_GET_ITEM(how, 0));
    for (int i = 0; i < arity; i++) core->keep[needs][i + 1] = (signed char)PyLong_AsLong(PyTuple_GET_ITEM(inputs, i));
    Py_DECREF(how);
    if (PyErr_Occurred()) return NULL;
    core->known[needs] = 1;
    return core->keep[needs];
}

/* An array that one inner loop can walk: aligned, C-contiguous, of float32 or float64 (0 or 1; else -1). */
static inline int float_kind(PyArrayObject *x) {
    PyArray_Descr *descr = PyArray_DESCR(x);
    return descr == F32 ? 0 : descr == F64 ? 1 : -1;
}
static inline int is_plain(PyArrayObject *x) {
    return (PyArray_FLAGS(x) & (NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED)) == (NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED);
}

/* Is the shape of `small` that of the last dimensions of `large`? */
static inline int ends_like(PyArrayObject *large, PyArrayObject *small) {
    int more = PyArray_NDIM(large) - PyArray_NDIM(small);
    return more >= 0 && memcmp(PyArray_DIMS(large) + more, PyArray_DIMS(small), sizeof(npy_intp) * PyArray_NDIM(small)) == 0;
}

/* The result by the inner loop of the ufunc; NULL without an error where this is not the way. `y` may be NULL. */
static PyObject *direct(Core *core, PyArrayObject *x, PyArrayObject *y) {
    int kind = float_kind(x);
    if (kind < 0 || core->loops[kind].result < 0 || core->arity != 1 + (y != NULL) || !is_plain(x)) return NULL;
    Loop loop = core->loops[kind];
    npy_intp size = PyArray_SIZE(x), item = PyArray_ITEMSIZE(x), other = 1;
    if (y == NULL && core->second != NULL) {
        y = ARRAY(PyDict_GetItemWithError(core->second, (PyObject *)PyArray_DESCR(x)));
        if (y == NULL) return NULL;
    }
    PyArrayObject *like = x;
    if (y != NULL) {
        if (PyArray_DESCR(y) != PyArray_DESCR(x) || !is_plain(y)) return NULL;
        other = PyArray_SIZE(y);
        if (!ends_like(x, y)) { if (!ends_like(y, x)) return NULL; like = y; }
    }
    if (size == 0 || other == 0 || size >= core->direct_below) return NULL;
    npy_intp all = PyArray_SIZE(like), few = y == NULL ? size : size < other ? size : other;
    PyArray_Descr *made = loop.result == PyArray_TYPE(x) ? PyArray_DESCR(x) : PyArray_DescrFromType(loop.result);
    PyObject *out = new_array(made, PyArray_NDIM(like), PyArray_DIMS(like));
    if (made != PyArray_DESCR(x)) Py_DECREF(made);
    if (out == NULL) return NULL;
    npy_intp step_out = PyArray_ITEMSIZE(ARRAY(out));
    char *args[3] = {PyArray_DATA(x), y == NULL ? PyArray_DATA(ARRAY(out)) : PyArray_DATA(y), PyArray_DATA(ARRAY(out))};
    if (few == 1 && all > 1) {  /* one operand is a single number */
        npy_intp steps[3] = {size == 1 ? 0 : item, other == 1 ? 0 : item, step_out};
        loop.loop(args, &all, steps, loop.data);
    } else {
        npy_intp steps[3] = {item, y == NULL ? step_out : item, step_out};
        for (npy_intp at = 0; at < all; at += few) {  /* several rounds if one operand is broadcast over rows */
            char *now[3] = {args[0] + (size == all ? at * item : 0), args[1], args[2] + at * step_out};
            if (y != NULL) now[1] += other == all ? at * item : 0;
            else now[1] = now[2];
            loop.loop(now, &few, steps, loop.data);
        }
    }
    return out;
}

/* `a.dot(b)` of two small matrices. */
static PyObject *small_dot(Core *core, PyArrayObject *a, PyArrayObject *b) {
    if (PyArray_NDIM(a) != 2 || PyArray_NDIM(b) != 2 || PyArray_DESCR(a) != PyArray_DESCR(b) || float_kind(a) < 0) return NULL;
    if (PyArray_SIZE(a) + PyArray_SIZE(b) > core->direct_below || PyArray_DIM(a, 1) != PyArray_DIM(b, 0)) return NULL;
    return PyArray_MatrixProduct((PyObject *)a, (PyObject *)b);
}

/* -- gradient rules on small arrays: the same arithmetic in the same order as the Python rules ------------------- */

typedef struct { char *data; int moves; } Operand;

/* An operand of a loop over all elements of `g`: of its shape and plain, or one number for all. */
static inline int operand_of(Operand *into, PyObject *value, PyArrayObject *like) {
    if (value == NULL || !PyArray_CheckExact(value)) return 0;
    PyArrayObject *x = ARRAY(value);
    if (PyArray_DESCR(x) != PyArray_DESCR(like)) return 0;
    into->data = PyArray_DATA(x);
    if (PyArray_NDIM(x) == 0) { into->moves = 0; return 1; }
    if (!same_shape(x, like)) return 0;
    if (is_plain(x)) { into->moves = 1; return 1; }
    for (int i = 0; i < PyArray_NDIM(x); i++) if (PyArray_STRIDE(x, i) != 0) return 0;
    into->moves = 0;  /* the gradient of a sum: one number, seen everywhere */
    return 1;
}

#define LOOP(type, expression)                                                                                          \
    do {                                                                                                                \
        type const *restrict ga = (type const *)g.data, *restrict xa = (type const *)x.data, *restrict za = (type const *)z.data; \
        type *restrict made = (type *)to;                                                                               \
        if (g.moves && x.moves && z.moves)                                                                              \
            for (npy_intp i = 0; i < n; i++) { type G = ga[i], X = xa[i], Z = za[i]; (void)X; (void)Z; made[i] = expression; } \
        else                                                                                                            \
            for (npy_intp i = 0; i < n; i++) {                                                                          \
                type G = ga[g.moves ? i : 0], X = xa[x.moves ? i : 0], Z = za[z.moves ? i : 0];                         \
                (void)X; (void)Z; made[i] = expression;                                                                 \
            }                                                                                                           \
    } while (0)
#define BOTH(expression) do { if (kind == 0) LOOP(float, expression); else LOOP(double, expression); } while (0)

/* The gradient of one input (`which`), given that of the output and what the node kept: (y, a[, b]). A new reference,
   or NULL without an error where the Python rule must run. */
static PyObject *small_gradient(Core *core, int which, PyArrayObject *given, PyObject *kept) {
    int kind = float_kind(given), rule = core->rule;
    if (kind < 0) return NULL;
    if (rule == RULE_ADD || (rule == RULE_SUB && which == 0)) return Py_NewRef((PyObject *)given);
    PyObject *first = PyTuple_GET_SIZE(kept) > 1 ? PyTuple_GET_ITEM(kept, 1) : NULL;
    PyObject *second = PyTuple_GET_SIZE(kept) > 2 ? PyTuple_GET_ITEM(kept, 2) : NULL, *y = PyTuple_GET_ITEM(kept, 0);
    if (rule == RULE_MATMUL) {
        PyObject *other = which == 0 ? second : first;
        if (other == NULL || !PyArray_CheckExact(other) || PyArray_NDIM(ARRAY(other)) != 2 || PyArray_NDIM(given) != 2) return NULL;
        PyObject *turned = PyArray_Transpose(ARRAY(other), NULL);
        if (turned == NULL) return NULL;
        PyObject *out = which == 0 ? small_dot(core, given, ARRAY(turned)) : small_dot(core, ARRAY(turned), given);
        Py_DECREF(turned);
        return out;
    }
    Operand g, x, z;
    if (!operand_of(&g, (PyObject *)given, given)) return NULL;
    x = z = g;
    switch (rule) {
        case RULE_SUB: case RULE_NEG: break;
        case RULE_MUL: if (!operand_of(&x, which == 0 ? second : first, given)) return NULL; break;
        case RULE_DIV:
            if (!operand_of(&z, second, given) || (which == 1 && !operand_of(&x, first, given))) return NULL;
            break;
        case RULE_LOG: case RULE_SQUARE: if (!operand_of(&x, first, given)) return NULL; break;
        case RULE_TANH: case RULE_SIGMOID: case RULE_RELU: case RULE_EXP: case RULE_SQRT:
            if (!operand_of(&x, y, given)) return NULL;
            break;
        default: return NULL;
    }
    if (PyArray_NDIM(given) > 0 && !g.moves && !PyArray_IS_C_CONTIGUOUS(given) && PyArray_SIZE(given) == 0) return NULL;
    PyObject *out = new_array(PyArray_DESCR(given), PyArray_NDIM(given), PyArray_DIMS(given));
    if (out == NULL) return NULL;
    npy_intp n = PyArray_SIZE(given);
    char *to = PyArray_DATA(ARRAY(out));
    switch (rule) {
        case RULE_SUB: case RULE_NEG: BOTH(-G); break;
        case RULE_MUL: case RULE_EXP: BOTH(G * X); break;
        case RULE_DIV: if (which == 0) BOTH(G / Z); else BOTH(-G * (X / Z / Z)); break;
        case RULE_LOG: BOTH(G / X); break;
        case RULE_SQUARE: BOTH(G * (X + X)); break;
        case RULE_SQRT: BOTH(G / (X + X)); break;
        case RULE_TANH: BOTH(G * (1 - X * X)); break;
        case RULE_SIGMOID: BOTH(G * (X - X * X)); break;
        case RULE_RELU: BOTH(X != 0 ? G : 0); break;
    }
    return out;
}

/* to += from, both plain and of one shape and dtype; 0 where this is not so. */
static int add_plain(PyArrayObject *to, PyArrayObject *from) {
    int kind = float_kind(to);
    if (kind < 0 || PyArray_DESCR(from) != PyArray_DESCR(to) || !same_shape(to, from) || !is_plain(to) || !is_plain(from)
        || !PyArray_ISWRITEABLE(to)) return 0;
    npy_intp n = PyArray_SIZE(to);
    if (kind == 0) { float *a = PyArray_DATA(to); float const *b = PyArray_DATA(from); for (npy_intp i = 0; i < n; i++) a[i] += b[i]; }
    else { double *a = PyArray_DATA(to); double const *b = PyArray_DATA(from); for (npy_intp i = 0; i < n; i++) a[i] += b[i]; }
    return 1;
}
