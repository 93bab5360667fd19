/* The loop of the backward pass, for a pass without captures and watchers that records nothing. Nodes with hooks, and
   what is large, are handed to Python one by one. See wayfare/autograd/engine.py, which has the same loop. */

typedef struct { double number; PyObject *node; } Item;

typedef struct {
    Item *heap;
    Py_ssize_t count, room;
    PyObject *pending;             /* node → gradient (a list of them for several outputs) */
    PyObject *owned;               /* nodes whose pending gradient is a buffer of this pass */
    PyObject *ahead, *g_ahead;     /* a pending node that is not in the heap, usually the next one */
    double ahead_number;
    PyObject *born;                /* leaf → its gradient, if this pass made it */
    PyObject *step, *send, *fit, *is_fresh, *add_up, *dense, *check_versions;  /* functions of the engine */
} Pass;

/* Usually an int; the nodes of an unrolled map are numbered between two others. */
static inline int number_of(PyObject *node, double *number) {
    PyObject *found = filled(node, N.number, "number");
    if (found == NULL) return -1;
    *number = PyFloat_AsDouble(found);
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

static int push(Pass *p, double number, PyObject *node) {
    if (p->count == p->room) {
        Py_ssize_t room = p->room == 0 ? 64 : 2 * p->room;
        Item *more = PyMem_Realloc(p->heap, room * sizeof(Item));
        if (more == NULL) { PyErr_NoMemory(); return -1; }
        p->heap = more;
        p->room = room;
    }
    Py_ssize_t i = p->count++;
    for (; i > 0 && p->heap[(i - 1) / 2].number < number; i = (i - 1) / 2) p->heap[i] = p->heap[(i - 1) / 2];
    p->heap[i] = (Item){number, Py_NewRef(node)};
    return 0;
}

static PyObject *pop(Pass *p) {
    PyObject *top = p->heap[0].node;
    Item last = p->heap[--p->count];
    Py_ssize_t i = 0, child;
    for (; (child = 2 * i + 1) < p->count; i = child) {
        if (child + 1 < p->count && p->heap[child + 1].number > p->heap[child].number) child++;
        if (p->heap[child].number <= last.number) break;
        p->heap[i] = p->heap[child];
    }
    if (p->count > 0) p->heap[i] = last;
    return top;
}

/* The sum of a pending gradient and another one; takes over `g` only. */
static PyObject *sum_of(Pass *p, PyObject *node, PyObject *old, PyObject *g) {
    int own = PySet_GET_SIZE(p->owned) > 0 ? PySet_Contains(p->owned, node) : 0;
    PyObject *made = NULL;
    int done = own > 0 ? add_on_device(old, g) : 0;
    if (done != 0) { if (done > 0) made = Py_NewRef(old); else own = -1; }
    else if (own > 0 && PyArray_CheckExact(old) && PyArray_CheckExact(g) && add_plain(ARRAY(old), ARRAY(g))) made = Py_NewRef(old);
    else if (own >= 0) made = PyObject_CallFunctionObjArgs(p->add_up, old, g, own ? Py_True : Py_False, Py_False, NULL);
    Py_DECREF(g);
    if (made != NULL && own == 0 && PySet_Add(p->owned, node) < 0) Py_CLEAR(made);
    return made;
}

/* The place of the pending gradient of a node: in `ahead`, in the table, or nowhere (NULL). Borrowed. */
static inline PyObject *pending_of(Pass *p, PyObject *node) {
    if (node == p->ahead) return p->g_ahead;
    return PyDict_GET_SIZE(p->pending) > 0 ? PyDict_GetItemWithError(p->pending, node) : NULL;
}

/* Add a gradient to a node of one output; takes over `g`. */
static int deliver(Pass *p, PyObject *node, PyObject *g) {
    PyObject *old = pending_of(p, node);
    if (old != NULL) {
        Py_INCREF(old);
        PyObject *sum = sum_of(p, node, old, g);
        Py_DECREF(old);
        if (sum == NULL) return -1;
        if (node == p->ahead) { Py_SETREF(p->g_ahead, sum); return 0; }
        int bad = PyDict_SetItem(p->pending, node, sum);
        Py_DECREF(sum);
        return bad;
    }
    if (PyErr_Occurred()) { Py_DECREF(g); return -1; }
    double number;
    if (number_of(node, &number) < 0) { Py_DECREF(g); return -1; }
    if (p->ahead == NULL) {
        p->ahead = Py_NewRef(node);
        p->g_ahead = g;
        p->ahead_number = number;
        return 0;
    }
    if (p->ahead_number < number) {
        PyObject *before = p->ahead, *g_before = p->g_ahead;
        int bad = push(p, p->ahead_number, before) < 0 || PyDict_SetItem(p->pending, before, g_before) < 0;
        p->ahead = Py_NewRef(node);
        p->g_ahead = g;
        p->ahead_number = number;
        Py_DECREF(before);
        Py_DECREF(g_before);
        return bad ? -1 : 0;
    }
    int bad = push(p, number, node) < 0 || PyDict_SetItem(p->pending, node, g) < 0;
    Py_DECREF(g);
    return bad ? -1 : 0;
}

/* Add a gradient to one output of a node of several; takes over `g`. */
static int deliver_output(Pass *p, PyObject *edge, PyObject *g) {
    PyObject *node = PyTuple_GET_SIZE(edge) == 2 ? PyTuple_GET_ITEM(edge, 0) : NULL;
    if (node == NULL || !PyObject_TypeCheck(node, NodeType) || !PyLong_Check(PyTuple_GET_ITEM(edge, 1))) {
        PyErr_SetString(PyExc_TypeError, "backward: an edge is a node, (node, output number), a leaf or None");
        Py_DECREF(g);
        return -1;
    }
    PyObject *slots = PyDict_GetItemWithError(p->pending, node);
    Py_ssize_t which = PyLong_AsSsize_t(PyTuple_GET_ITEM(edge, 1));
    if (slots == NULL) {
        PyObject *outs = PyErr_Occurred() ? NULL : PyObject_GetAttrString(node, "outs");
        Py_ssize_t n = outs == NULL ? -1 : PyObject_Size(outs);
        Py_XDECREF(outs);
        slots = n < 0 ? NULL : PyList_New(n);
        if (slots == NULL) { Py_DECREF(g); return -1; }
        for (Py_ssize_t i = 0; i < n; i++) PyList_SET_ITEM(slots, i, Py_NewRef(Py_None));
        double number;
        int bad = number_of(node, &number) < 0 || PyDict_SetItem(p->pending, node, slots) < 0 || push(p, number, node) < 0;
        Py_DECREF(slots);  /* the table holds it */
        if (bad) { Py_DECREF(g); return -1; }
    }
    if (!PyList_CheckExact(slots) || which < 0 || which >= PyList_GET_SIZE(slots)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_IndexError, "backward: a node has no output of this number");
        Py_DECREF(g);
        return -1;
    }
    PyObject *old = PyList_GET_ITEM(slots, which);
    if (old != Py_None) {
        Py_INCREF(slots);
        PyObject *sum = PyObject_CallFunctionObjArgs(p->add_up, old, g, Py_False, Py_False, NULL);
        Py_DECREF(g);
        int bad = sum == NULL ? -1 : PyList_SetItem(slots, which, sum);
        Py_DECREF(slots);
        return bad;
    }
    return PyList_SetItem(slots, which, g);
}

/* -- gradients of parts: added into the whole, where that is small ------------------------------------------------ */

enum { SMALL_WHOLE = 4096 };

/* to[offset + …] += from, over the dimensions of the part; `set`: in place of adding. */
static void add_part(ViewAttrs *known, PyArrayObject *to, PyArrayObject *from, int set) {
    npy_intp at[MOST_DIMS] = {0};
    char *a = PyArray_BYTES(to) + known->offset, *b = PyArray_BYTES(from);
    int n = known->out_dims, wide = float_kind(to);
    npy_intp inner = n > 0 ? known->out_shape[n - 1] : 1, step_a = n > 0 ? known->out_strides[n - 1] : 0;
    npy_intp step_b = n > 0 ? PyArray_STRIDE(from, n - 1) : 0;
    for (;;) {
        char *x = a, *y = b;
        for (npy_intp i = 0; i < inner; i++, x += step_a, y += step_b) {
            if (wide) *(double *)x = set ? *(double *)y : *(double *)x + *(double *)y;
            else *(float *)x = set ? *(float *)y : *(float *)x + *(float *)y;
        }
        int d = n - 2;
        for (; d >= 0; d--) {
            a += known->out_strides[d];
            b += PyArray_STRIDE(from, d);
            if (++at[d] < known->out_shape[d]) break;
            a -= known->out_strides[d] * known->out_shape[d];
            b -= PyArray_STRIDE(from, d) * known->out_shape[d];
            at[d] = 0;
        }
        if (d < 0) return;
    }
}

/* Can this be the whole that a part lies in? Its layout must be that of the tensor when the view was learnt. */
static inline int is_whole(ViewAttrs *known, PyObject *whole) {
    PyArrayObject *x = ARRAY(whole);
    return PyArray_CheckExact(whole) && PyArray_DESCR(x) == known->descr && PyArray_NDIM(x) == known->in_dims && is_plain(x)
        && PyArray_ISWRITEABLE(x) && memcmp(PyArray_DIMS(x), known->in_shape, sizeof(npy_intp) * known->in_dims) == 0;
}

/* The gradient of a view by an index goes to its place. 1: done; 0: by the Python rule; -1: an error. */
static int deliver_part(Pass *p, PyObject *node, PyObject *edge, PyArrayObject *g) {
    ViewAttrs *known = (ViewAttrs *)AT(node, N.attrs);
    if (!IS_A(known, ViewAttrsType) || !known->plain || known->descr != PyArray_DESCR(g) || float_kind(g) < 0
        || PyArray_NDIM(g) != known->out_dims || !PyArray_ISALIGNED(g)
        || memcmp(PyArray_DIMS(g), known->out_shape, sizeof(npy_intp) * known->out_dims) != 0) return 0;
    if (Py_TYPE(edge) == TensorType) {
        PyObject *buffer = PyDict_GetItemWithError(p->born, edge);
        if (buffer == NULL) return PyErr_Occurred() ? -1 : 0;
        if (!is_whole(known, buffer)) return 0;
        add_part(known, ARRAY(buffer), g, 0);
        return 1;
    }
    if (Py_TYPE(edge) != NodeType) return 0;
    PyObject *old = pending_of(p, edge);
    if (old != NULL) {
        int own = PySet_Contains(p->owned, edge);
        if (own < 1) return own;
        if (!is_whole(known, old)) return 0;
        add_part(known, ARRAY(old), g, 0);
        return 1;
    }
    if (PyErr_Occurred()) return -1;
    if (PyArray_MultiplyList(known->in_shape, known->in_dims) > SMALL_WHOLE) return 0;
    Py_INCREF(known->descr);
    PyObject *whole = PyArray_Zeros(known->in_dims, known->in_shape, known->descr, 0);
    if (whole == NULL) return -1;
    add_part(known, ARRAY(whole), g, 1);
    return deliver(p, edge, whole) < 0 || PySet_Add(p->owned, edge) < 0 ? -1 : 1;
}

/* -- the rules ---------------------------------------------------------------------------------------------------- */

/* The gradients of all inputs by the rules of the op; a new list, or NULL. `m` runs ops on arrays. */
static PyObject *by_rules(Core *core, PyObject *m, PyObject *node, PyObject *g, PyObject *kept, PyObject *edges, PyObject *attrs) {
    Py_ssize_t arity = PyTuple_GET_SIZE(edges), k = PyTuple_GET_SIZE(kept);
    PyObject *grads = PyList_New(arity), *args[MOST_INPUTS + 3] = {m, g};
    if (grads == NULL) return NULL;
    for (Py_ssize_t i = 0; i < k; i++) args[2 + i] = PyTuple_GET_ITEM(kept, i);
    for (Py_ssize_t i = 0; i < arity; i++) {
        PyObject *rule = PyTuple_GET_ITEM(core->vjp, i), *made;
        if (PyTuple_GET_ITEM(edges, i) == Py_None || rule == Py_None) made = Py_NewRef(Py_None);
        else {
            made = core->rule != NO_RULE ? small_gradient(core, (int)i, ARRAY(g), kept) : NULL;
            if (made == NULL && !PyErr_Occurred())
                made = PyObject_VectorcallDict(rule, args, 2 + k, PyDict_Check(attrs) && PyDict_GET_SIZE(attrs) > 0 ? attrs : NULL);
        }
        if (made != NULL && PyArray_CheckScalar(made)) Py_SETREF(made, PyArray_FromAny(made, NULL, 0, 0, 0, NULL));
        if (made == NULL) { Py_DECREF(grads); return NULL; }
        PyList_SET_ITEM(grads, i, made);
    }
    return grads;
}

/* Hand the gradients of a node to its inputs. */
static int hand_on(Pass *p, PyObject *node, PyObject *op, int broadcasts, PyObject *edges, PyObject *grads, PyObject *kept,
                   PyObject *g) {
    Py_ssize_t n = PyTuple_GET_SIZE(edges);
    if (PyList_GET_SIZE(grads) < n) n = PyList_GET_SIZE(grads);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *edge = PyTuple_GET_ITEM(edges, i), *gi = PyList_GET_ITEM(grads, i);
        if (edge == Py_None || gi == Py_None) continue;
        Py_INCREF(gi);
        if (Py_TYPE(edge) == NodeType) {
            PyObject *shape = AT(node, N.shape), *wanted = AT(edge, N.shape);
            if (broadcasts && (shape != wanted || shape == NULL)) {
                int differ = filled(node, N.shape, "shape") == NULL || filled(edge, N.shape, "shape") == NULL ? -1
                    : PyObject_RichCompareBool(shape, wanted, Py_NE);
                if (differ < 0) { Py_DECREF(gi); return -1; }
                if (differ) {
                    Py_SETREF(gi, PyObject_CallFunctionObjArgs(p->fit, op, edge, gi, Py_False, NULL));
                    if (gi == NULL) return -1;
                }
            }
            if (deliver(p, edge, gi) < 0) return -1;
            continue;
        }
        PyObject *buffer = PyTuple_CheckExact(edge) ? NULL : PyDict_GetItemWithError(p->born, edge);
        if (buffer == NULL && PyErr_Occurred()) { Py_DECREF(gi); return -1; }
        if (IS_ARRAY(buffer) && PyArray_CheckExact(gi) && add_plain(ARRAY(buffer), ARRAY(gi))) { Py_DECREF(gi); continue; }
        int added = add_on_device(buffer, gi);
        if (added != 0) { Py_DECREF(gi); if (added < 0) return -1; continue; }
        PyObject *fitting = PyObject_CallFunctionObjArgs(p->fit, op, edge, gi, Py_False, NULL);
        if (fitting == NULL) { Py_DECREF(gi); return -1; }
        int bad = 0;
        if (buffer != NULL && PyArray_CheckExact(gi)) {
            PyObject *sum = PyObject_CallFunctionObjArgs(p->add_up, buffer, fitting, Py_True, Py_False, NULL);
            bad = sum == NULL;
            Py_XDECREF(sum);
            Py_DECREF(fitting);
        } else if (PyTuple_CheckExact(edge)) bad = deliver_output(p, edge, fitting);
        else {
            PyObject *fresh = PyObject_CallFunctionObjArgs(p->is_fresh, node, gi, g, kept, grads, NULL), *sent = NULL;
            if (fresh != NULL) sent = PyObject_CallFunctionObjArgs(p->send, edge, fitting, fresh, NULL);
            bad = sent == NULL;
            Py_XDECREF(fresh);
            Py_XDECREF(sent);
            Py_DECREF(fitting);
        }
        Py_DECREF(gi);
        if (bad) return -1;
    }
    return 0;
}

/* Run one node; takes over `g`. */
static int run_node(Pass *p, PyObject *node, PyObject *g, PyObject *m, int retain) {
    PyObject *op = Py_XNewRef(filled(node, N.op, "op")), *edges = NULL, *grads = NULL;
    PyObject *kept = Py_XNewRef(AT(node, N.kept)), *attrs = Py_XNewRef(AT(node, N.attrs));
    Core *core = NULL;
    int result = -1, usual = 0, broadcasts = 0;
    if (op == NULL || (edges = Py_XNewRef(filled(node, N.edges, "edges"))) == NULL) goto end;
    if (PyObject_TypeCheck(op, OpType)) {
        if ((core = (Core *)Py_XNewRef((PyObject *)core_of(op))) == NULL) goto end;
        broadcasts = core->broadcasts;
        usual = Py_TYPE(node) == NodeType && IS_A(kept, &PyTuple_Type) && AT(node, N.extras) == Py_None
            && PyTuple_CheckExact(edges) && core->rules > 0 && core->rules == PyTuple_GET_SIZE(edges)
            && PyTuple_GET_SIZE(kept) > 0 && PyTuple_GET_SIZE(kept) <= MOST_INPUTS + 1
            && attrs != NULL && (PyDict_Check(attrs) || PyObject_Not(attrs) == 1);
    }
    if (usual && Py_TYPE(g) == RowsType) {
        Py_SETREF(g, PyObject_CallMethodNoArgs(g, p->dense));
        if (g == NULL) goto end;
    }
    if (usual && PyArray_CheckScalar(g)) {  /* what NumPy makes of 0-dim arrays */
        Py_SETREF(g, PyArray_FromAny(g, NULL, 0, 0, 0, NULL));
        if (g == NULL) goto end;
    }
    if (usual && PyArray_CheckExact(g) && !IS_BFLOAT16(ARRAY(g)) && PyArray_SIZE(ARRAY(g)) < core->large_vjp_from) {
        double number;
        if (number_of(node, &number) < 0) goto end;
        if (PyFloat_AsDouble(PyList_GET_ITEM(LATEST, 0)) > number) {
            PyObject *checked = PyObject_CallOneArg(p->check_versions, node);
            if (checked == NULL) goto end;
            Py_DECREF(checked);
        }
        if (core->part && core->rules == 1) {
            int done = deliver_part(p, node, PyTuple_GET_ITEM(edges, 0), ARRAY(g));
            if (done != 0) {
                if (!retain) replace(node, N.kept, Py_NewRef(Py_None));
                result = done < 0 ? -1 : 0;
                goto end;
            }
        }
        grads = by_rules(core, m, node, g, kept, edges, attrs);
        if (grads == NULL) goto end;
    } else if (usual && IS_DEVICE(g) && core->rules > 0) {
        double number;
        if (number_of(node, &number) < 0) goto end;
        if (PyFloat_AsDouble(PyList_GET_ITEM(LATEST, 0)) > number) {
            PyObject *checked = PyObject_CallOneArg(p->check_versions, node);
            if (checked == NULL) goto end;
            Py_DECREF(checked);
        }
        grads = gradients_on_device(core, g, kept, edges, attrs);
        if (grads == NULL && PyErr_Occurred()) goto end;
    }
    if (grads == NULL) {
        PyObject *made = PyObject_CallFunctionObjArgs(p->step, node, g, NULL);  /* (edges, grads, kept, g) */
        if (made == NULL) goto end;
        Py_SETREF(edges, PySequence_Tuple(PyTuple_GET_ITEM(made, 0)));
        grads = PySequence_List(PyTuple_GET_ITEM(made, 1));
        Py_XSETREF(kept, Py_NewRef(PyTuple_GET_ITEM(made, 2)));
        Py_SETREF(g, Py_NewRef(PyTuple_GET_ITEM(made, 3)));
        Py_DECREF(made);
        if (edges == NULL) goto end;
        if (core == NULL) {
            PyObject *found = PyObject_GetAttrString(op, "broadcasts");
            broadcasts = found == NULL ? -1 : PyObject_IsTrue(found);
            Py_XDECREF(found);
            if (broadcasts < 0) goto end;
        }
    }
    if (grads == NULL) goto end;
    if (!retain) {
        if (Py_TYPE(node) == NodeType) replace(node, N.kept, Py_NewRef(Py_None));
        else if (PyObject_SetAttrString(node, "kept", Py_None) < 0) goto end;
    }
    result = hand_on(p, node, op, broadcasts, edges, grads, kept, g);
end:
    Py_XDECREF(core);
    Py_XDECREF(op);
    Py_XDECREF(attrs);
    Py_XDECREF(edges);
    Py_XDECREF(grads);
    Py_XDECREF(kept);
    Py_XDECREF(g);
    return result;
}

/* backward(roots, retain, born, m, step, send, fit, is_fresh, add_up, check_versions) */
static PyObject *backward(PyObject *self, PyObject *args) {
    PyObject *roots, *m;
    Pass pass = {0}, *p = &pass;
    int retain, bad = 0;
    if (!PyArg_ParseTuple(args, "O!pO!OOOOOOO", &PyList_Type, &roots, &retain, &PyDict_Type, &p->born, &m, &p->step, &p->send,
                          &p->fit, &p->is_fresh, &p->add_up, &p->check_versions)) return NULL;
    p->dense = PyUnicode_InternFromString("dense");
    p->pending = PyDict_New();
    p->owned = PySet_New(NULL);
    bad = p->dense == NULL || p->pending == NULL || p->owned == NULL;
    for (Py_ssize_t i = 0; !bad && i < PyList_GET_SIZE(roots); i++) {
        PyObject *edge = PyTuple_GET_ITEM(PyList_GET_ITEM(roots, i), 0), *g = PyTuple_GET_ITEM(PyList_GET_ITEM(roots, i), 1);
        if (Py_TYPE(edge) == NodeType) bad = deliver(p, edge, Py_NewRef(g));
        else if (PyTuple_CheckExact(edge)) bad = deliver_output(p, edge, Py_NewRef(g));
        else {
            PyObject *sent = PyObject_CallFunctionObjArgs(p->send, edge, g, Py_False, NULL);
            bad = sent == NULL;
            Py_XDECREF(sent);
        }
    }
    for (unsigned turn = 1; !bad && (p->ahead != NULL || p->count > 0); turn++) {
        PyObject *node, *g;
        if (p->ahead != NULL && (p->count == 0 || p->ahead_number > p->heap[0].number)) {
            node = p->ahead;
            g = p->g_ahead;
            p->ahead = p->g_ahead = NULL;
        } else {
            node = pop(p);
            g = Py_XNewRef(PyDict_GetItemWithError(p->pending, node));
            bad = g == NULL || PyDict_DelItem(p->pending, node) < 0;
        }
        if (!bad && PySet_GET_SIZE(p->owned) > 0) bad = PySet_Discard(p->owned, node) < 0;
        if (!bad) bad = run_node(p, node, g, m, retain) < 0;
        else Py_XDECREF(g);
        Py_DECREF(node);
        if (!bad && turn % 256 == 0) bad = PyErr_CheckSignals() < 0;
    }
    for (Py_ssize_t i = 0; i < p->count; i++) Py_DECREF(p->heap[i].node);
    PyMem_Free(p->heap);
    Py_XDECREF(p->ahead);
    Py_XDECREF(p->g_ahead);
    Py_XDECREF(p->pending);
    Py_XDECREF(p->owned);
    Py_XDECREF(p->dense);
    if (bad) return NULL;
    Py_RETURN_NONE;
}

static PyObject *set_up_backward(PyObject *self, PyObject *rows) {
    RowsType = (PyTypeObject *)Py_NewRef(rows);
    Py_RETURN_NONE;
}
