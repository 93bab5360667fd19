/* Loops over the pending calls of `wf.map`: grouping them, ordering their rows, reading where rows lie, and marking calls
   as run. See wayfare/batch/run/call_loops.py, which does the same in Python. */

static PyTypeObject *StepsType, *StackCallsType;
static PyObject *EMPTY;

/* A table from addresses to small numbers. */
typedef struct { void **keys; Py_ssize_t *values; Py_ssize_t size, used; } Numbers;

static Py_ssize_t *place_in(Numbers *t, void *key) {  /* NULL: no memory. A new key has the number -1. */
    if (t->used * 2 >= t->size) {
        Numbers grown = {NULL, NULL, t->size == 0 ? 32 : t->size * 4, 0};
        grown.keys = PyMem_Calloc(grown.size, sizeof(void *));
        grown.values = PyMem_Malloc(grown.size * sizeof(Py_ssize_t));
        if (grown.keys == NULL || grown.values == NULL) { PyMem_Free(grown.keys); PyMem_Free(grown.values); PyErr_NoMemory(); return NULL; }
        for (Py_ssize_t i = 0; i < t->size; i++)
            if (t->keys[i] != NULL) *place_in(&grown, t->keys[i]) = t->values[i];
        PyMem_Free(t->keys);
        PyMem_Free(t->values);
        *t = grown;
    }
    Py_ssize_t at = ((size_t)key >> 4) * 0x9E3779B97F4A7C15ull >> 20 & (t->size - 1);
    while (t->keys[at] != NULL && t->keys[at] != key) at = (at + 1) & (t->size - 1);
    if (t->keys[at] == NULL) { t->keys[at] = key; t->values[at] = -1; t->used++; }
    return &t->values[at];
}
static void free_numbers(Numbers *t) { PyMem_Free(t->keys); PyMem_Free(t->values); }

/* Are these calls as they were recorded, each with a signature and a tuple or list of inputs? Else TypeError. */
static int are_calls(PyObject *calls) {
    if (!PyList_Check(calls)) { PyErr_SetString(PyExc_TypeError, "a list of calls is wanted"); return 0; }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(calls); i++) {
        PyObject *call = PyList_GET_ITEM(calls, i);
        if (Py_TYPE(call) != CallType || AT(call, C.signature) == NULL || AT(call, C.inputs) == NULL
            || !(PyTuple_CheckExact(AT(call, C.inputs)) || PyList_CheckExact(AT(call, C.inputs)))) {
            PyErr_SetString(PyExc_TypeError, "a list of calls is wanted");
            return 0;
        }
    }
    return 1;
}

static inline Py_ssize_t inputs_of(PyObject *call) { return PySequence_Fast_GET_SIZE(AT(call, C.inputs)); }
static inline PyObject *input_of(PyObject *call, Py_ssize_t k) { return PySequence_Fast_GET_ITEM(AT(call, C.inputs), k); }

/* The call that makes a row, if that is pending; borrowed, or NULL. */
static inline PyObject *producer_of(PyObject *row) {
    if (Py_TYPE(row) != ValueType) return NULL;
    PyObject *call = AT(row, W.call);
    return IS_A(call, CallType) && AT(call, C.group) == Py_None && AT(call, C.depth) != NULL ? call : NULL;
}

static inline int set_depth(PyObject *call, Py_ssize_t depth) {
    PyObject *number = PyLong_FromSsize_t(depth);
    replace(call, C.depth, number);
    return number == NULL ? -1 : 0;
}

static int append_to(PyObject *list, PyObject *call) {  /* `list` may be NULL: no memory */
    return list == NULL ? -1 : PyList_Append(list, call);
}

/* by_depth(calls): groups of one signature and one depth, which is the longest chain of pending calls before them. */
static PyObject *by_depth(PyObject *self, PyObject *calls) {
    if (!are_calls(calls)) return NULL;
    PyObject *levels = PyList_New(0), *groups = NULL;  /* of each depth, the groups in the order of their first calls */
    Numbers *places = NULL;                            /* of each depth: signature to group */
    Py_ssize_t count = 0, room = 0;
    for (Py_ssize_t i = 0; levels != NULL && i < PyList_GET_SIZE(calls); i++) {
        PyObject *call = PyList_GET_ITEM(calls, i);
        Py_ssize_t depth = 0;
        for (Py_ssize_t k = 0; k < inputs_of(call); k++) {
            PyObject *producer = producer_of(input_of(call, k));
            if (producer == NULL) continue;
            Py_ssize_t before = PyLong_AsSsize_t(AT(producer, C.depth));
            if (before == -1 && PyErr_Occurred()) goto end;
            if (before > depth) depth = before;
        }
        if (depth > count) { PyErr_SetString(PyExc_ValueError, "a call comes before one that it reads"); goto end; }
        if (depth == count) {
            if (count == room) {
                Py_ssize_t wanted = room == 0 ? 64 : room * 2;
                Numbers *grown = PyMem_Realloc(places, wanted * sizeof(Numbers));
                if (grown == NULL) { PyErr_NoMemory(); goto end; }
                places = grown;
                room = wanted;
            }
            places[count++] = (Numbers){NULL, NULL, 0, 0};
            PyObject *level = PyList_New(0);
            int bad = append_to(levels, level) < 0 || level == NULL;
            Py_XDECREF(level);
            if (bad) goto end;
        }
        if (set_depth(call, depth + 1) < 0) goto end;
        PyObject *level = PyList_GET_ITEM(levels, depth);
        Py_ssize_t *place = place_in(&places[depth], AT(call, C.signature));
        if (place == NULL) goto end;
        if (*place < 0) {
            *place = PyList_GET_SIZE(level);
            PyObject *group = PyList_New(0);
            int bad = group == NULL || PyList_Append(level, group) < 0;
            Py_XDECREF(group);
            if (bad) goto end;
        }
        if (PyList_Append(PyList_GET_ITEM(level, *place), call) < 0) goto end;
    }
    groups = levels == NULL ? NULL : PyList_New(0);
    for (Py_ssize_t i = 0; groups != NULL && i < count; i++) {
        Py_ssize_t end = PyList_GET_SIZE(groups);
        if (PyList_SetSlice(groups, end, end, PyList_GET_ITEM(levels, i)) < 0) Py_CLEAR(groups);
    }
end:
    for (Py_ssize_t i = 0; i < count; i++) free_numbers(&places[i]);
    PyMem_Free(places);
    Py_XDECREF(levels);
    return groups;
}

/* one_after_another(calls): one signature after another, each in as many groups as its longest chain has calls; an empty
   list where two signatures read each other. */
typedef struct { PyObject *levels; Py_ssize_t first_read, last_read; int done; } OwnCalls;
typedef struct { void *signature; Py_ssize_t next; } Read;

static PyObject *one_after_another(PyObject *self, PyObject *calls) {
    if (!are_calls(calls)) return NULL;
    Numbers places = {NULL, NULL, 0, 0};
    OwnCalls *owns = NULL;
    Read *reads = NULL;
    PyObject *groups = NULL;
    Py_ssize_t count = 0, room = 0, n_reads = 0, read_room = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(calls); i++) {
        PyObject *call = PyList_GET_ITEM(calls, i), *signature = AT(call, C.signature);
        Py_ssize_t *place = place_in(&places, signature), level = 0;
        if (place == NULL) goto end;
        if (*place < 0) {
            if (count == room) {
                Py_ssize_t wanted = room == 0 ? 64 : room * 2;
                OwnCalls *grown = PyMem_Realloc(owns, wanted * sizeof(OwnCalls));
                if (grown == NULL) { PyErr_NoMemory(); goto end; }
                owns = grown;
                room = wanted;
            }
            *place = count;
            owns[count++] = (OwnCalls){PyList_New(0), -1, -1, 0};
            if (owns[count - 1].levels == NULL) goto end;
        }
        OwnCalls *own = &owns[*place];
        PyObject *last = NULL;
        for (Py_ssize_t k = 0; k < inputs_of(call); k++) {
            PyObject *producer = producer_of(input_of(call, k));
            if (producer == NULL || producer == last) continue;
            last = producer;
            void *read = AT(producer, C.signature);
            if (read == signature) {
                Py_ssize_t before = PyLong_AsSsize_t(AT(producer, C.depth));
                if (before == -1 && PyErr_Occurred()) goto end;
                if (before >= level) level = before + 1;
            } else if (own->last_read < 0 || reads[own->last_read].signature != read) {
                if (n_reads == read_room) {
                    Py_ssize_t wanted = read_room == 0 ? 256 : read_room * 2;
                    Read *grown = PyMem_Realloc(reads, wanted * sizeof(Read));
                    if (grown == NULL) { PyErr_NoMemory(); goto end; }
                    reads = grown;
                    read_room = wanted;
                }
                reads[n_reads] = (Read){read, -1};
                if (own->last_read < 0) own->first_read = n_reads; else reads[own->last_read].next = n_reads;
                own->last_read = n_reads++;
            }
        }
        if (level > PyList_GET_SIZE(own->levels)) { PyErr_SetString(PyExc_ValueError, "a call comes before one that it reads"); goto end; }
        if (set_depth(call, level) < 0) goto end;
        if (level == PyList_GET_SIZE(own->levels)) {
            PyObject *group = PyList_New(0);
            int bad = group == NULL || PyList_Append(own->levels, group) < 0;
            Py_XDECREF(group);
            if (bad) goto end;
        }
        if (PyList_Append(PyList_GET_ITEM(own->levels, level), call) < 0) goto end;
    }
    groups = PyList_New(0);
    for (Py_ssize_t left = count; groups != NULL && left > 0;) {
        Py_ssize_t before = left;
        for (Py_ssize_t i = 0; i < count; i++) {
            int ready = !owns[i].done;
            for (Py_ssize_t r = owns[i].first_read; ready && r >= 0; r = reads[r].next) {
                Py_ssize_t *place = place_in(&places, reads[r].signature);
                if (place == NULL) { Py_CLEAR(groups); goto end; }
                ready = *place >= 0 && owns[*place].done;
            }
            if (!ready) continue;
            Py_ssize_t end = PyList_GET_SIZE(groups);
            if (PyList_SetSlice(groups, end, end, owns[i].levels) < 0) { Py_CLEAR(groups); goto end; }
            owns[i].done = 1;
            left--;
        }
        if (left == before) {
            Py_SETREF(groups, PyList_New(0));
            break;
        }
    }
end:
    for (Py_ssize_t i = 0; i < count; i++) Py_XDECREF(owns[i].levels);
    PyMem_Free(owns);
    PyMem_Free(reads);
    free_numbers(&places);
    return groups;
}

/* -- the order of rows ---------------------------------------------------------------------------------------------- */

typedef struct { Py_ssize_t depth, place; PyObject *call; } Ranked;

static int before_other(const void *a, const void *b) {
    const Ranked *one = a, *other = b;
    if (one->depth != other->depth) return one->depth < other->depth ? -1 : 1;
    return one->place < other->place ? -1 : one->place > other->place;
}

static int sort_by_depth(PyObject *group) {
    Py_ssize_t n = PyList_GET_SIZE(group), sorted = 1;
    Ranked *all = PyMem_Malloc(n * sizeof(Ranked));
    if (all == NULL) { PyErr_NoMemory(); return -1; }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *call = PyList_GET_ITEM(group, i);
        all[i] = (Ranked){PyLong_AsSsize_t(AT(call, C.depth)), i, call};
        if (i > 0 && all[i].depth < all[i - 1].depth) sorted = 0;
    }
    if (!sorted) {
        qsort(all, n, sizeof(Ranked), before_other);
        for (Py_ssize_t i = 0; i < n; i++) PyList_SET_ITEM(group, i, all[i].call);  /* the same references, moved */
    }
    PyMem_Free(all);
    return PyErr_Occurred() ? -1 : 0;
}

static inline int rank_row(PyObject *row, Py_ssize_t *rank) {
    if (Py_TYPE(row) != ValueType || !IS_A(AT(row, W.call), CallType)) return 0;
    return set_depth(AT(row, W.call), --*rank);
}

/* order_rows(groups): sort the calls of each group by who reads them next. */
static PyObject *order_rows(PyObject *self, PyObject *groups) {
    if (!PyList_Check(groups)) { PyErr_SetString(PyExc_TypeError, "a list of groups is wanted"); return NULL; }
    for (Py_ssize_t g = 0; g < PyList_GET_SIZE(groups); g++) {
        PyObject *group = PyList_GET_ITEM(groups, g);
        if (!are_calls(group)) return NULL;
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(group); i++)
            if (set_depth(PyList_GET_ITEM(group, i), 0) < 0) return NULL;
    }
    Py_ssize_t rank = 0;
    for (Py_ssize_t g = PyList_GET_SIZE(groups) - 1; g >= 0; g--) {
        PyObject *group = PyList_GET_ITEM(groups, g);
        Py_ssize_t n = PyList_GET_SIZE(group);
        int is_steps = Py_TYPE(group) == StepsType;
        if (n > 1 && !is_steps && sort_by_depth(group) < 0) return NULL;
        if (Py_TYPE(group) == StackCallsType) {
            for (Py_ssize_t i = n - 1; i >= 0; i--) {
                PyObject *call = PyList_GET_ITEM(group, i);
                for (Py_ssize_t k = inputs_of(call) - 1; k >= 0; k--)
                    if (rank_row(input_of(call, k), &rank) < 0) return NULL;
            }
            continue;
        }
        Py_ssize_t columns = n > 0 ? PY_SSIZE_T_MAX : 0;
        for (Py_ssize_t i = 0; i < n; i++) {
            Py_ssize_t size = inputs_of(PyList_GET_ITEM(group, i));
            if (size < columns) columns = size;
        }
        if (is_steps && columns > 1) columns = 1;
        PyObject *first_end = NULL, *last_end = NULL;
        for (Py_ssize_t k = columns - 1; k >= 0; k--) {
            PyObject *first = input_of(PyList_GET_ITEM(group, 0), k);
            PyObject *last = input_of(PyList_GET_ITEM(group, n - 1), k);
            if (Py_TYPE(first) == ValueType && Py_TYPE(last) == ValueType) {
                /* Probably two outputs of the same calls, judged by the first and the last: they are ordered already. */
                if (first_end == AT(first, W.call) && last_end == AT(last, W.call)) continue;
                first_end = AT(first, W.call);
                last_end = AT(last, W.call);
            }
            for (Py_ssize_t i = n - 1; i >= 0; i--)
                if (rank_row(input_of(PyList_GET_ITEM(group, i), k), &rank) < 0) return NULL;
        }
    }
    Py_RETURN_NONE;
}

/* -- running a group ------------------------------------------------------------------------------------------------ */

/* columns_of(calls): for each input, its rows. */
static PyObject *columns_of(PyObject *self, PyObject *calls) {
    if (!are_calls(calls)) return NULL;
    Py_ssize_t n = PyList_GET_SIZE(calls), count = n == 0 ? 0 : inputs_of(PyList_GET_ITEM(calls, 0));
    for (Py_ssize_t i = 0; i < n; i++)
        if (inputs_of(PyList_GET_ITEM(calls, i)) != count) {
            PyErr_SetString(PyExc_ValueError, "calls of one signature have different numbers of inputs");
            return NULL;
        }
    PyObject *columns = PyList_New(count);
    for (Py_ssize_t k = 0; columns != NULL && k < count; k++) {
        PyObject *column = PyTuple_New(n);
        if (column == NULL) { Py_CLEAR(columns); break; }
        for (Py_ssize_t i = 0; i < n; i++)
            PyTuple_SET_ITEM(column, i, Py_NewRef(input_of(PyList_GET_ITEM(calls, i), k)));
        PyList_SET_ITEM(columns, k, column);
    }
    return columns;
}

/* rows_of(values): (ids of the rows, their offsets or None, how many need a gradient, the distance between two ids if
   that is always the same and the offsets are equal, else 0); None if not all are values of calls that have run. */
static PyObject *rows_of(PyObject *self, PyObject *values) {
    if (!PyTuple_CheckExact(values)) { PyErr_SetString(PyExc_TypeError, "a tuple of values is wanted"); return NULL; }
    npy_intp n = PyTuple_GET_SIZE(values);
    for (npy_intp i = 0; i < n; i++) {
        PyObject *value = PyTuple_GET_ITEM(values, i);
        if (Py_TYPE(value) != ValueType || !IS_A(AT(value, W.call), CallType) || AT(AT(value, W.call), C.row_id) == NULL
            || AT(value, W.number) == NULL || AT(value, W.offset) == NULL) Py_RETURN_NONE;
    }
    PyObject *ids = PyArray_SimpleNew(1, &n, NPY_INT64), *offsets = PyArray_SimpleNew(1, &n, NPY_INT64), *made = NULL;
    if (ids == NULL || offsets == NULL) goto end;
    npy_int64 *id = PyArray_DATA(ARRAY(ids)), *offset = PyArray_DATA(ARRAY(offsets));
    Py_ssize_t needed = 0, moved = 0, distance = n > 1 ? -1 : 0;
    for (npy_intp i = 0; i < n; i++) {
        PyObject *value = PyTuple_GET_ITEM(values, i);
        id[i] = PyLong_AsLongLong(AT(AT(value, W.call), C.row_id)) + PyLong_AsLongLong(AT(value, W.number));
        offset[i] = PyLong_AsLongLong(AT(value, W.offset));
        needed += AT(value, W.needs_grad) == Py_True;
        moved |= offset[i] != 0;
        if (i > 0 && (offset[i] != offset[0] || (i > 1 && id[i] - id[i - 1] != distance))) distance = 0;
        else if (i == 1) distance = id[1] - id[0];
    }
    if (!PyErr_Occurred()) made = Py_BuildValue("OOnn", ids, moved ? offsets : Py_None, needed, distance < 0 ? 0 : distance);
end:
    Py_XDECREF(ids);
    Py_XDECREF(offsets);
    return made;
}

/* mark_as_run(calls, group, start, step, live): the calls have run, as rows of a group from `start` on; references to
   tensors that are still held are added to `live`. */
static PyObject *mark_as_run(PyObject *self, PyObject *args) {
    PyObject *calls, *group, *live;
    Py_ssize_t start, step;
    if (!PyArg_ParseTuple(args, "OOnnO!", &calls, &group, &start, &step, &PyList_Type, &live) || !are_calls(calls)) return NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(calls); i++) {
        PyObject *call = PyList_GET_ITEM(calls, i), *handles = AT(call, C.handles);
        if (!IS_A(handles, &PyTuple_Type)) continue;
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(handles); k++) {
            PyObject *held = PyTuple_GET_ITEM(handles, k);
            if (PyWeakref_CheckRef(held) && PyWeakref_GET_OBJECT(held) != Py_None && PyList_Append(live, held) < 0) return NULL;
        }
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(calls); i++) {
        PyObject *call = PyList_GET_ITEM(calls, i), *id = PyLong_FromSsize_t(start + i * step);
        if (id == NULL) return NULL;
        replace(call, C.group, Py_NewRef(group));
        replace(call, C.row_id, id);
        replace(call, C.inputs, Py_NewRef(EMPTY));
        replace(call, C.handles, Py_NewRef(Py_None));
    }
    Py_RETURN_NONE;
}

/* set_up_loops(Call, Value, Steps, StackCalls) */
static PyObject *set_up_loops(PyObject *self, PyObject *args) {
    if (!PyArg_ParseTuple(args, "OOOO", &CallType, &ValueType, &StepsType, &StackCallsType)) return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) Py_INCREF(PyTuple_GET_ITEM(args, i));
    EMPTY = PyTuple_New(0);
    if (EMPTY == NULL || slots_of_calls() < 0) return NULL;
    Py_RETURN_NONE;
}
