/* How calls, values, stand-ins and copies of rows of `wf.map` are made and freed. A map makes some ten thousand of them and frees them soon
   after, so their memory is kept for the next ones, and a class frees its objects itself: Python's way for any class
   with slots takes several times as long.

   The collector does not know them: to take an object out of its list would touch two other objects. They are part of no
   cycle but that of a call and its stand-ins, which the call holds until it has run or is dropped. A stand-in that becomes
   a tensor may be part of one, and so may the tuple that a call returned: the collector knows them from then on. */

enum { MOST_SLOTS = 16, MOST_KEPT = 16384 };

/* A class whose objects are made here; `kept` is the memory of freed ones. */
typedef struct {
    PyTypeObject *type;
    Py_ssize_t offsets[MOST_SLOTS];
    int slots;
    Py_ssize_t used;
    PyObject *kept[MOST_KEPT];
} Kind;
static Kind CALLS, VALUES, STAND_INS, ROW_COPIES;

/* A new object with empty slots. */
static inline PyObject *make(Kind *kind) {
    PyObject *made;
    if (kind->used > 0) {
        made = kind->kept[--kind->used];
        (void)PyObject_Init(made, kind->type);
        return made;
    }
    made = kind->type->tp_alloc(kind->type, 0);
    if (made != NULL) PyObject_GC_UnTrack(made);
    return made;
}

static inline void give_up(Kind *kind, PyObject *o) {
    for (int i = 0; i < kind->slots; i++) {
        PyObject *held = AT(o, kind->offsets[i]);
        if (held == NULL) continue;
        AT(o, kind->offsets[i]) = NULL;
        Py_DECREF(held);
    }
    if (kind->used < MOST_KEPT) kind->kept[kind->used++] = o;
    else PyObject_GC_Del(o);
    Py_DECREF(kind->type);
}
static void free_call(PyObject *o) { PyObject_GC_UnTrack(o); give_up(&CALLS, o); }
static void free_value(PyObject *o) { PyObject_GC_UnTrack(o); give_up(&VALUES, o); }
static void free_row_copy(PyObject *o) { PyObject_GC_UnTrack(o); give_up(&ROW_COPIES, o); }
static void free_stand_in(PyObject *o) {
    PyObject_GC_UnTrack(o);
    PyObject_ClearWeakRefs(o);
    give_up(&STAND_INS, o);
}

/* From now on the collector knows an object again. */
static inline void collect(PyObject *o) {
    if (!PyObject_GC_IsTracked(o)) PyObject_GC_Track(o);
}

/* set_class(tensor, class): a stand-in becomes a tensor, or a tensor a stand-in. Both have the same slots, but Python
   refuses it, because they are freed by different functions. */
static PyObject *set_class(PyObject *self, PyObject *args) {
    PyObject *tensor;
    PyTypeObject *type, *before;
    if (!PyArg_ParseTuple(args, "OO!", &tensor, &PyType_Type, &type)) return NULL;
    before = Py_TYPE(tensor);
    if ((type != TensorType && type != STAND_INS.type) || (before != TensorType && before != STAND_INS.type)) {
        PyErr_SetString(PyExc_TypeError, "set_class: a tensor or a stand-in is wanted");
        return NULL;
    }
    Py_INCREF(type);
    Py_SET_TYPE(tensor, type);
    Py_DECREF(before);
    if (type == TensorType) collect(tensor);
    Py_RETURN_NONE;
}

/* Objects of a class are freed by `free` from now on, if it has slots alone. */
static int make_here(Kind *kind, PyTypeObject *type, destructor free) {
    kind->type = type;
    kind->slots = 0;
    PyObject *order = type->tp_mro;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(order); i++) {
        PyTypeObject *base = (PyTypeObject *)PyTuple_GET_ITEM(order, i);
        if (base == &PyBaseObject_Type) continue;  /* it has no slots, and from Python 3.12 on no tp_dict */
        PyObject *name, *found, *own = base->tp_dict;
        for (Py_ssize_t at = 0; PyDict_Next(own, &at, &name, &found);) {
            if (Py_TYPE(found) != &PyMemberDescr_Type) continue;
            if (kind->slots == MOST_SLOTS) { PyErr_Format(PyExc_TypeError, "%s has more slots than are known", type->tp_name); return -1; }
            kind->offsets[kind->slots++] = ((PyMemberDescrObject *)found)->d_member->offset;
        }
    }
    if (type->tp_dictoffset != 0 || type->tp_del != NULL || type->tp_finalize != NULL) {
        PyErr_Format(PyExc_TypeError, "%s has more than slots", type->tp_name);
        return -1;
    }
    type->tp_dealloc = free;
    return 0;
}
